# Decides whether the fused attention is built: it needs cuDNN's headers and those of its front end, which scripts/setup.sh fetches
# into .cache. Nothing is linked: cuDNN itself is opened at run time. DELTRON_CUDNN=AUTO takes what is found, ON insists, OFF leaves
# it out. Sets DELTRON_HAVE_CUDNN.
set(DELTRON_HAVE_CUDNN OFF)
if(DELTRON_HAVE_CUDA AND NOT DELTRON_CUDNN STREQUAL "OFF")
  find_path(DELTRON_CUDNN_INCLUDE cudnn_version.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS /usr/local/cuda/include)
  find_path(DELTRON_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${PROJECT_SOURCE_DIR}/.cache/cudnn-frontend/include)
  if(DELTRON_CUDNN_INCLUDE AND DELTRON_CUDNN_FRONTEND_INCLUDE)
    set(DELTRON_HAVE_CUDNN ON)
  elseif(DELTRON_CUDNN STREQUAL "ON")
    message(FATAL_ERROR "DELTRON_CUDNN=ON, but headers are missing. cuDNN (cudnn_version.h): ${DELTRON_CUDNN_INCLUDE}; its front end "
                        "(cudnn_frontend.h): ${DELTRON_CUDNN_FRONTEND_INCLUDE}. scripts/setup.sh fetches the front end; or point to them "
                        "with -DDELTRON_CUDNN_INCLUDE=... -DDELTRON_CUDNN_FRONTEND_INCLUDE=..., or build without: -DDELTRON_CUDNN=OFF.")
  endif()
endif()
message(STATUS "deltron: fused attention (cuDNN) ${DELTRON_HAVE_CUDNN}")
