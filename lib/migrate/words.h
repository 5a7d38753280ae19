// What the frames say in JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/store/image.h"

namespace ckpt::migrate {

inline constexpr int kVersion = 1;

/// How the other end is to restore. What it does not know it refuses.
struct RestoreWishes {
  std::string dir;               ///< an existing folder to keep the image in meanwhile; empty: in memory
  bool new_pid_namespace = false;
  bool pipes_to_null = false;    ///< --external-pipes null
  bool drop_labels = false;
  std::vector<std::string> addresses, allow_changed;
  uint64_t lazy_silence_us = 0;  ///< pages come once they run, and are lost after so long without one; 0: not so
};

struct Hello {
  std::string id;                ///< of the migration: 32 hex digits
  bool asks = false;             ///< only what became of it
  uint64_t memory = 0;           ///< bytes that the processes have, about
  uint64_t silence_us = 30'000'000;  ///< as Link::Limits at the source
  store::HostFacts host;         ///< on which they have run
  std::vector<int> pids;
  RestoreWishes wishes;
};

std::string to_json(const Hello& hello);
/// kCorrupt, kUnsupported (another version, a wish that is not known).
Result<Hello> parse_hello(std::string_view text);

/// What became of processes that were to be let go. The letters are those of a claim.
enum class Verdict : char {
  kRuns = 'r',
  kNot = 'n',      ///< they never will
  kPartly = 'p',   ///< they do, and not all of their memory has come
  kLost = 'x',     ///< they have run, and were ended when the rest of their memory did not come
  kUnknown = 'u',
};

/// As an answer says it, and back; what is no such word is kUnknown.
std::string_view word_for(Verdict verdict);
Verdict parse_verdict(std::string_view word);

std::string to_json(const Error& error);
/// In the name of `peer`.
Error parse_error(std::string_view text, const std::string& peer);

}  // namespace ckpt::migrate
