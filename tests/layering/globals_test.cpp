// No mutable globals, so that several ranks can live as threads of one process. Exceptions stand in the list below, by file and
// name.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "tests/layering/lexer.h"
#include "tests/layering/source_tree.h"

namespace deltron::layering {
namespace {

// All in src/base: the signal flag, the logger, the state of the one terminal line, each thread's marker of the pool.
const std::set<std::pair<std::string, std::string>>& allow_list() {
  static const std::set<std::pair<std::string, std::string>> list = {
      {"src/base/log.cpp", "instance"},
      {"src/base/signals.cpp", "stop_flag"},
      {"src/base/terminal.cpp", "shown"},
      {"src/base/thread_pool.cpp", "inside"},
  };
  return list;
}

TEST(Globals, there_are_no_mutable_ones_outside_the_list) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const SourceFile& file : program_files()) {
    for (const Global& global : mutable_globals(file.text)) {
      seen.insert({file.path, global.name});
      EXPECT_EQ(allow_list().count({file.path, global.name}), 1u) << file.path << ":" << global.line << ": " << global.statement;
    }
  }
  EXPECT_EQ(seen, allow_list()) << "an entry of the list has no variable any more";
}

TEST(Globals, the_list_names_src_base_alone) {
  for (const auto& entry : allow_list()) EXPECT_EQ(layer_of(entry.first), "src/base") << entry.first;
}

struct Sample {
  const char* text;
  const char* name = "";  // of the variable that must be found
};

const std::vector<Sample>& mutable_samples() {
  static const std::vector<Sample> samples = {
      {"int counter = 0;", "counter"},
      {"namespace a {\nint counter;\n}", "counter"},
      {"namespace a::b { namespace {\nstd::mutex guard;\n} }", "guard"},
      {"static int x;", "x"},
      {"static int x{3};", "x"},
      {"inline int shared_total = 0;", "shared_total"},
      {"extern int elsewhere;", "elsewhere"},
      {"extern \"C\" {\nint c_counter = 0;\n}", "c_counter"},
      {"thread_local std::string buffer;", "buffer"},
      {"std::vector<int> table = {1, 2};", "table"},
      {"std::vector<int> table(10);", "table"},
      {"std::vector<const int*> pointers;", "pointers"},
      {"std::map<int, std::function<void(int)>> hooks;", "hooks"},
      {"const char* name = \"a\";", "name"},
      {"int (*hook)(int) = nullptr;", "hook"},
      {"volatile std::sig_atomic_t flag = 0;", "flag"},
      {"std::atomic<bool> ready{false};", "ready"},
      {"int grid[4][4];", "grid"},
      {"int Type::count = 0;", "count"},
      {"struct Pair { int a; } pair;", "pair"},
      {"struct stat info{};", "info"},
      {"template <typename T> inline T cache = T{};", "cache"},
      {"__device__ float scratch[16];", "scratch"},
      {"auto state = [] { return 3; }();", "state"},
      {"[[maybe_unused]] int unused = 1;", "unused"},
      {"class A {\n public:\n  static int count;\n};", "count"},
      {"struct A { static inline std::string last = \"x\"; };", "last"},
      {"void f() { static int calls = 0; ++calls; }", "calls"},
      {"int& f() {\n  static std::unique_ptr<int> one(new int);\n  return *one;\n}", "one"},
      {"void f() { if (true) { for (int i = 0; i < 3; ++i) { thread_local int depth; } } }", "depth"},
      {"void f() HWY_ATTR { static bool once = false; }", "once"},
      {"void f() { run([&](int i) { static int inner = i; }); }", "inner"},
      {"A::A() : a_(1), b_{2} { static int made = 0; }", "made"},
      {"auto f() -> int { static int a = 0; return a; }", "a"},
      {"void f() HWY_ATTR { }\nint after = 0;", "after"},
      {"A::A() : b_{2} { }\nint after = 0;", "after"},
      {"enum class E { A, B };\nint after;", "after"},
      {"struct S { int member; };\nint after;", "after"},
      {"#define X(a) \\\n  int a\nint after = 0;", "after"},
  };
  return samples;
}

const std::vector<Sample>& harmless_samples() {
  static const std::vector<Sample> samples = {
      {"constexpr int kA = 1;"},
      {"inline constexpr std::size_t kA{1};"},
      {"const std::vector<int> kTable = {1, 2};"},
      {"static const char* const kName = \"a\";"},
      {"constexpr const char* kNames[] = {\"a;\", \"b{\"};"},
      {"int f(int a, std::vector<int> b = {});"},
      {"static int helper();"},
      {"inline bool operator==(A a, B b) { return a.x == b.x; }"},
      {"extern \"C\" void handler(int number) { int local = number; (void)local; }"},
      {"class A;\nstruct B;\nenum class C : int;\n"},
      {"class A final : public B<int> {\n private:\n  int a_ = 0;\n  std::vector<int> b_{1, 2};\n  static int f();\n  static "
       "constexpr int kA = 1;\n};"},
      {"using A = std::map<int, int>;\ntypedef int B;\nusing namespace std;"},
      {"typedef struct { int a; } A;"},
      {"template <typename T>\nstruct A { T value = 0; };"},
      {"template <typename T, int N = 3> T f(T a) { T b = a; return b; }"},
      {"template <> int f<3>(int a);"},
      {"static_assert(sizeof(int) == 4, \"int\");"},
      {"HWY_EXPORT(Kernel);\nHWY_BEFORE_NAMESPACE();"},
      {"void f() { int local = 0; struct sigaction action{}; auto g = [&](int i) { int x = i; }; g(local); }"},
      {"const T& table() { static const T t = [] { T made; made.x = 1; return made; }(); return t; }"},
      {"void f() { switch (a) { case 1: { int b = 0; } default: break; } do { int c; } while (false); }"},
      {"// static int x;\n/* int y; */\nconst char kText[] = \"int z;\";"},
      {"const char kRaw[] = R\"(static int x; \"{ )\";"},
      {"__global__ void kernel(const float* a, std::int64_t n) { __shared__ float tile[32]; tile[0] = a[n]; }"},
      {"std::string f() { return {}; }\nint g(int a) noexcept { return a; }"},
      {"A::A(int a) : a_(a), b_{a}, c_() {}\nA::~A() = default;"},
      {"#define X(a) \\\n  int a = 0;\nnamespace {}"},
      {"Type::Nested Type::make(int a) const { return {a}; }"},
      {"enum class E : std::uint8_t { A = 1, B };"},
      {"const struct { int a; } kTable[] = {{1}, {2}};"},
  };
  return samples;
}

TEST(Globals, the_scan_finds_every_kind_of_mutable_one) {
  for (const Sample& sample : mutable_samples()) {
    const std::vector<Global> found = mutable_globals(sample.text);
    ASSERT_EQ(found.size(), 1u) << sample.text;
    EXPECT_EQ(found[0].name, sample.name) << sample.text;
  }
}

TEST(Globals, the_scan_accepts_what_is_no_mutable_global) {
  for (const Sample& sample : harmless_samples()) {
    for (const Global& global : mutable_globals(sample.text)) ADD_FAILURE() << sample.text << "\nfound: " << global.statement;
  }
}

TEST(Globals, the_scan_says_where) {
  const std::vector<Global> found = mutable_globals("// first\nnamespace a {\n\nint b = 1;\n}  // namespace a\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].line, 4);
}

}  // namespace
}  // namespace deltron::layering
