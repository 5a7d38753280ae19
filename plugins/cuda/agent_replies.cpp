#include "plugins/cuda/agent_replies.h"

#include <cstring>

#include "lib/device/hash.h"

namespace ckpt::cuda {

namespace {

Error damaged() { return Error(Code::kIo, "", "its agent's answer is damaged"); }

/// `count` structures off the front of `bytes`. False: there are not so many.
template <class T>
bool take(std::string_view& bytes, uint64_t count, std::vector<T>* out) {
  if (count > bytes.size() / sizeof(T)) return false;
  out->resize(count);
  if (count != 0) std::memcpy(out->data(), bytes.data(), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
  return true;
}

template <class T>
Result<std::vector<T>> all_of(std::string_view payload) {
  std::vector<T> found;
  if (payload.size() % sizeof(T) != 0 || !take(payload, payload.size() / sizeof(T), &found)) return damaged();
  return found;
}

bool is_sound(uint64_t start, uint64_t size) { return size <= UINT64_MAX - start; }

bool append(const std::vector<agent::RangeReply>& from, std::vector<device::Range>* to) {
  for (const agent::RangeReply& range : from) {
    if (!is_sound(range.start, range.size)) return false;
    to->push_back({{range.start}, range.size});
  }
  return true;
}

}  // namespace

Result<agent::HelloReply> parse_hello(std::string_view payload) {
  CKPT_TRY_ASSIGN(const auto found, all_of<agent::HelloReply>(payload));
  if (found.size() != 1) return damaged();
  return found[0];
}

Result<std::vector<agent::AllocationReply>> parse_allocations(std::string_view payload) {
  CKPT_TRY_ASSIGN(auto found, all_of<agent::AllocationReply>(payload));
  for (const agent::AllocationReply& a : found) {
    const bool chunked = (a.address | a.size) % device::kMinChunk == 0 && a.size != 0;
    if (!is_sound(a.address, a.size) || a.kind > agent::Kind::kImported || a.device < 0) return damaged();
    if (a.kind == agent::Kind::kOwned && !chunked) return damaged();
  }
  return found;
}

Result<std::vector<device::SavedRange>> parse_saved(std::string_view payload) {
  CKPT_TRY_ASSIGN(const auto entries, all_of<agent::SavedReply>(payload));
  std::vector<device::SavedRange> found;
  for (const agent::SavedReply& s : entries) {
    const bool inside = s.offset <= s.buffer_size && s.original.size <= s.buffer_size - s.offset;
    if (!is_sound(s.original.start, s.original.size) || !inside) return damaged();
    found.push_back({.original = {{s.original.start}, s.original.size},
                     .buffer = s.buffer,
                     .buffer_size = s.buffer_size,
                     .offset = s.offset});
  }
  return found;
}

Result<std::vector<device::Range>> parse_ranges(std::string_view payload) {
  CKPT_TRY_ASSIGN(const auto entries, all_of<agent::RangeReply>(payload));
  std::vector<device::Range> found;
  if (!append(entries, &found)) return damaged();
  return found;
}

Result<std::vector<uint64_t>> parse_ids(std::string_view payload) { return all_of<uint64_t>(payload); }

Result<std::vector<device::Launch>> parse_recorded(std::string_view payload) {
  std::vector<device::Launch> found;
  while (!payload.empty()) {
    std::vector<agent::RecordReply> head;
    std::vector<agent::RangeReply> reads, writes;
    device::Launch launch;
    if (!take(payload, 1, &head) || !take(payload, head[0].reads, &reads) || !take(payload, head[0].writes, &writes))
      return damaged();
    if (!append(reads, &launch.reads) || !append(writes, &launch.writes)) return damaged();
    if (head[0].record_size > payload.size() || head[0].name_size > payload.size() - head[0].record_size)
      return damaged();
    launch.sequence = head[0].sequence;
    launch.replayable = head[0].replayable != 0;
    launch.record = payload.substr(0, head[0].record_size);
    launch.name = payload.substr(head[0].record_size, head[0].name_size);
    payload.remove_prefix(head[0].record_size + head[0].name_size);
    found.push_back(std::move(launch));
  }
  return found;
}

}  // namespace ckpt::cuda
