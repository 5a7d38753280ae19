// Nanoseconds of a driver call, the best of some rounds, in one thread and in as many as there are processors.
// usage: calls LABEL
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                       void**);
using Copy = int (*)(uint64_t, const void*, size_t, void*);
using Query = int (*)(void*);

constexpr int kCalls = 2'000'000, kRounds = 7;

template <class F>
double nanoseconds(const F& call) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    best = std::min(
        best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kCalls);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto launch = reinterpret_cast<Launch>(dlsym(driver, "cuLaunchKernel"));
  const auto copy = reinterpret_cast<Copy>(dlsym(driver, "cuMemcpyHtoDAsync_v2"));
  const auto query = reinterpret_cast<Query>(dlsym(driver, "cuStreamQuery"));
  if (init(0) != 0) return 1;
  void* parameters[] = {nullptr};
  const auto one_launch = [&] { launch(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr); };
  const double alone = nanoseconds(one_launch);
  std::vector<std::thread> threads;
  std::vector<double> each(std::thread::hardware_concurrency());
  for (double& result : each) threads.emplace_back([&] { result = nanoseconds(one_launch); });
  for (std::thread& thread : threads) thread.join();
  std::printf("%-12s launch %5.2f ns, in %zu threads %5.2f ns; copy %5.2f ns; query (no API lock) %5.2f ns\n",
              argc > 1 ? argv[1] : "", alone, each.size(), *std::max_element(each.begin(), each.end()),
              nanoseconds([&] { copy(0, nullptr, 0, nullptr); }), nanoseconds([&] { query(nullptr); }));
}
