// See cudnn_library.h.
#include "kernels/cuda/cudnn_library.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <glob.h>
#include <sys/stat.h>

#include <cstdlib>
#include <vector>

// The functions defined here are this binary's own affair: hidden, so that the opened library keeps calling its own.
#pragma GCC visibility push(hidden)
#include <cudnn.h>
#include <nvrtc.h>
#pragma GCC visibility pop

namespace deltron::kernels::cuda {
namespace {

constexpr std::size_t kLeastVersion = 90600;  // grouped queries with ragged offsets
const char* const kName = "libcudnn.so.9";

void add_matches(const std::string& pattern, std::vector<std::string>& places) {
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) places.push_back(found.gl_pathv[i]);
  }
  globfree(&found);
}

std::vector<std::string> places() {
  std::vector<std::string> list;
  if (const char* given = std::getenv("DELTRON_CUDNN")) {  // what is named is meant: nothing else is tried
    struct stat info {};
    const bool folder = stat(given, &info) == 0 && S_ISDIR(info.st_mode);
    return {folder ? std::string(given) + "/" + kName : given};
  }
  list.push_back(kName);
  list.push_back(std::string("/usr/local/cuda/lib64/") + kName);
  std::vector<std::string> pythons;
  if (const char* environment = std::getenv("VIRTUAL_ENV")) pythons.push_back(environment);
  if (const char* environment = std::getenv("CONDA_PREFIX")) pythons.push_back(environment);
  if (const char* home = std::getenv("HOME")) pythons.push_back(std::string(home) + "/.local");
  pythons.insert(pythons.end(), {"/usr/local", "/usr", "/opt/conda"});
  for (const std::string& python : pythons) add_matches(python + "/lib/python3*/*-packages/nvidia/cudnn/lib/" + kName, list);
  return list;
}

std::string version_text(std::size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

CudnnLibrary open_library() {
  CudnnLibrary library;
  std::string tried;
  for (const std::string& place : places()) {
    void* handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      tried += (tried.empty() ? "" : ", ") + place;
      continue;
    }
    const auto get_version = reinterpret_cast<decltype(&cudnnGetVersion)>(dlsym(handle, "cudnnGetVersion"));
    const std::size_t version = get_version != nullptr ? get_version() : 0;
    if (version < kLeastVersion) {
      tried += (tried.empty() ? "" : ", ") + place + " (" + version_text(version) + ", too old: " + version_text(kLeastVersion) +
               " is needed)";
      dlclose(handle);
      continue;
    }
    library.handle = handle;
    library.path = place;
    library.version = version_text(version);
    library.number = static_cast<std::int64_t>(version);
    return library;
  }
  library.problem = "cuDNN was not found; tried: " + tried;
  return library;
}

}  // namespace

const CudnnLibrary& cudnn_library() {
  static const CudnnLibrary library = open_library();
  return library;
}

}  // namespace deltron::kernels::cuda

namespace {

// A function of the opened library. Callers ask cudnn_library() first, so that null means a library without that name.
template <class F>
F* entry(const char* name) {
  void* const handle = deltron::kernels::cuda::cudnn_library().handle;
  return handle != nullptr ? reinterpret_cast<F*>(dlsym(handle, name)) : nullptr;
}

}  // namespace

#define DELTRON_CUDNN_ENTRY(name, parameters, arguments)                                      \
  cudnnStatus_t name parameters {                                                             \
    static auto* const function = entry<decltype(name)>(#name);                               \
    return function != nullptr ? function arguments : CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED; \
  }

extern "C" {

DELTRON_CUDNN_ENTRY(cudnnCreate, (cudnnHandle_t * handle), (handle))
DELTRON_CUDNN_ENTRY(cudnnDestroy, (cudnnHandle_t handle), (handle))
DELTRON_CUDNN_ENTRY(cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))
DELTRON_CUDNN_ENTRY(cudnnGetStream, (cudnnHandle_t handle, cudaStream_t* stream), (handle, stream))
DELTRON_CUDNN_ENTRY(cudnnBackendCreateDescriptor, (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* made), (type, made))
DELTRON_CUDNN_ENTRY(cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor), (descriptor))
DELTRON_CUDNN_ENTRY(cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor))
DELTRON_CUDNN_ENTRY(cudnnBackendSetAttribute,
                    (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void* values),
                    (descriptor, name, type, count, values))
DELTRON_CUDNN_ENTRY(cudnnBackendGetAttribute,
                    (const cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t wanted, int64_t* count, void* values),
                    (descriptor, name, type, wanted, count, values))
DELTRON_CUDNN_ENTRY(cudnnBackendExecute, (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack),
                    (handle, plan, pack))

std::size_t cudnnGetVersion() {
  static auto* const function = entry<decltype(cudnnGetVersion)>("cudnnGetVersion");
  return function != nullptr ? function() : 0;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  static auto* const function = entry<decltype(cudnnGetErrorString)>("cudnnGetErrorString");
  return function != nullptr ? function(status) : "cuDNN is not open";
}
void cudnnGetLastErrorString(char* message, std::size_t size) {
  static auto* const function = entry<decltype(cudnnGetLastErrorString)>("cudnnGetLastErrorString");
  if (function != nullptr) return function(message, size);
  if (size > 0) message[0] = '\0';
}

// The front end compiles one kernel of its own at run time, a norm on Blackwell. It is not used here, and is refused.
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*) {
  return NVRTC_ERROR_INVALID_OPTION;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_ERROR_INVALID_PROGRAM; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return NVRTC_ERROR_INVALID_PROGRAM; }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, std::size_t*) { return NVRTC_ERROR_INVALID_PROGRAM; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INVALID_PROGRAM; }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, std::size_t*) { return NVRTC_ERROR_INVALID_PROGRAM; }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return NVRTC_ERROR_INVALID_PROGRAM; }

}  // extern "C"
