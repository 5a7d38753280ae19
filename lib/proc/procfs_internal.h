// What the parsers of /proc have in common.
#pragma once

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/base/io.h"
#include "lib/base/worker_pool.h"

namespace ckpt::proc {

inline std::string proc_path(int pid, const std::string& name) { return "/proc/" + std::to_string(pid) + "/" + name; }

constexpr uint64_t kProcLimit = uint64_t{512} << 20;

inline Result<std::string> read_proc(int pid, const std::string& name) {
  const std::string path = proc_path(pid, name);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return sys_error(path, "cannot open");
  return io::read_all(fd.get(), kProcLimit, path);
}

inline Error malformed(const char* what) { return Error(Code::kIo, what, "is not in the form that this ckpt knows"); }

template <class T>
bool parse_number(std::string_view text, T& out, int base = 10) {
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  return ec == std::errc() && end == text.data() + text.size();
}

/// Cuts the next blank-separated word off `text`.
inline std::string_view next_word(std::string_view& text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) {
    text = {};
    return {};
  }
  size_t end = text.find_first_of(" \t", begin);
  std::string_view word = text.substr(begin, end == std::string_view::npos ? end : end - begin);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end);
  return word;
}

inline std::string_view next_line(std::string_view& text) {
  size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return line;
}

/// "Key:\tvalue" lines. `value` has no leading blanks.
inline bool next_field(std::string_view& text, std::string_view& key, std::string_view& value) {
  while (!text.empty()) {
    std::string_view line = next_line(text);
    size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    key = line.substr(0, colon);
    value = line.substr(colon + 1);
    size_t begin = value.find_first_not_of(" \t");
    value = begin == std::string_view::npos ? std::string_view() : value.substr(begin);
    return true;
  }
  return false;
}

template <class T>
bool parse_list(std::string_view value, std::vector<T>& out) {
  for (std::string_view word = next_word(value); !word.empty(); word = next_word(value)) {
    if (!parse_number(word, out.emplace_back())) return false;
  }
  return true;
}

/// The names in a folder that are decimal numbers, sorted.
inline Result<std::vector<int>> numbers_in(const std::string& path) {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  if (!dir) return sys_error(path, "cannot list");
  std::vector<int> out;
  while (const dirent* entry = ::readdir(dir.get())) {
    int number = 0;
    if (parse_number(std::string_view(entry->d_name), number)) out.push_back(number);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Calls `take(i)` for each i below `count`, by as many threads as pay: the kernel looks up what is below /proc in
/// parallel.
template <class Take>
Result<void> spread(size_t count, Take take) {
  constexpr size_t kWorthAThread = 128, kMost = 8;
  const size_t threads = std::min({size_t{std::thread::hardware_concurrency()}, count / kWorthAThread, kMost});
  if (threads < 2) return side_by_side(nullptr, count, take);
  WorkerPool others(static_cast<unsigned>(threads) - 1);
  return side_by_side(&others, count, take);
}

}  // namespace ckpt::proc
