// Runs a fuzz target without libFuzzer: every file of the corpus, every cut and many changed bytes of it, and the empty
// input. The mutations are the same in every run.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

constexpr size_t kMutations = 400;  ///< of each kind, a file

/// A copy of its own on the heap, so that a sanitizer sees a read past the end.
void run(const Bytes& input) {
  const Bytes copy(input);
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

void run_mutations(const Bytes& original) {
  const size_t step = original.size() / kMutations + 1;
  for (size_t cut = 0; cut < original.size(); cut += step)
    run(Bytes(original.begin(), original.begin() + static_cast<long>(cut)));
  uint32_t noise = 1;
  for (size_t i = 0; i < original.size(); i += step) {
    Bytes changed = original;
    noise = noise * 1664525 + 1013904223;
    changed[i] = static_cast<uint8_t>(changed[i] ^ (1 + (noise >> 24) % 255));
    run(changed);
  }
}

std::vector<fs::path> inputs(int argc, char** argv) {
  std::vector<fs::path> out;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      out.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(argv[i])) {
      if (entry.is_regular_file()) out.push_back(entry.path());
    }
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  run({});
  const std::vector<fs::path> files = inputs(argc, argv);
  // A replay of nothing proves nothing.
  if (files.empty()) {
    std::fprintf(stderr, "the corpus is empty or missing\n");
    return 1;
  }
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    if (!in) {
      std::fprintf(stderr, "cannot read %s\n", file.c_str());
      return 1;
    }
    const Bytes bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    run(bytes);
    run_mutations(bytes);
  }
  std::printf("%zu files and their mutations\n", files.size());
  return 0;
}
