// What would loading this pickle run? Every global that a loader would import, where, and whether it is harmless.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/pickle/pickle.h"

namespace ckpt::pickle {

enum class Verdict : uint8_t {
  kSafe,       ///< checkpoints are made of it
  kUnknown,    ///< not known here: trust it or not
  kDangerous,  ///< runs commands or code, touches files or the network, or reaches what does
};
std::string_view verdict_name(Verdict verdict);

struct Classification {
  Verdict verdict;
  std::string_view why;  ///< a clause; empty for kSafe
};
/// By name alone. Dotted names are judged by what they lead to, too: protocol 4 follows them from module to module.
Classification classify_global(std::string_view module, std::string_view name);

struct Import {
  std::string name;      ///< "posix.system"
  uint64_t offset = 0;   ///< of the opcode, from the start of the scanned bytes
  Classification classification;
  bool nested = false;   ///< in a pickle that lies as bytes in the scanned one (io.BytesIO)
};

struct Scan {
  std::vector<Import> imports;  ///< each name once a pickle, by offset
  std::string stopped;          ///< why the scan ended before the pickle did; what comes after it is not judged
  uint64_t stopped_at = 0;
  uint64_t consumed = 0;        ///< bytes of the pickle
};

/// Never fails: what cannot be read says so in `stopped`. Looks into pickles within the pickle, two levels deep.
Scan scan(ByteSpan pickle, const Limits& limits = {});

/// Does this begin like a pickle of protocol 2 or later?
bool looks_like_pickle(ByteSpan bytes);

}  // namespace ckpt::pickle
