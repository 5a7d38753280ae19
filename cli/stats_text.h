// How an image came about, in words: for the verbs that make one, and for inspect.
#pragma once

#include <string>

#include "lib/store/process_image.h"

namespace ckpt::cli {

/// Why bytes of memory took no room in an image.
struct SavedBytes {
  const char* name;  ///< as in the manifest
  const char* text;
  uint64_t store::Savings::*bytes;
};
inline constexpr SavedBytes kSavedBytes[] = {
    {"zero", "zero pages", &store::Savings::zero},
    {"same_space", "repeats within a process", &store::Savings::same_space},
    {"other_space", "repeats of another process", &store::Savings::other_space},
    {"parent_unwritten", "not written since the parent", &store::Savings::parent_unwritten},
    {"parent_equal", "read, equal to the parent", &store::Savings::parent_equal},
    {"chain_elsewhere", "elsewhere in the chain", &store::Savings::chain_elsewhere},
    {"compression", "compression", &store::Savings::compression},
};

/// What a capture cost and copied, as an object of JSON: for the verbs that make an image, and for inspect.
std::string stats_json(const store::CaptureStats& stats);

/// The name of a phase as a member of a JSON document: "pre-copy" is pre_copy.
std::string json_key(std::string name);
/// "2.1 ms, and 480 us in short stops beside it"
std::string frozen_text(const store::CaptureStats& stats);
/// The iterations of pre-copy: "1.00 GiB in 391 ms, 10.2 MiB in 12 ms".
std::string rounds_text(const store::CaptureStats& stats);
/// "work held for 12 ms; 30 GiB of memory: 30 GiB pre-copied, 300 MiB at the stop"
std::string gpu_text(const store::CaptureStats& stats);
/// The three longest phases, and how many there are beside them: "pre-copy 377 ms, store 19.2 ms, prepare 13.2 ms, and
/// 9 shorter ones". With `all`: all, in their order.
std::string phases_text(const store::CaptureStats& stats, bool all = false);
/// What the processes were up to while they ran and were captured.
std::string load_text(const store::CaptureStats& stats);

}  // namespace ckpt::cli
