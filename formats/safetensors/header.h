// The header of a safetensors file (formats.md 3.6): 8 bytes length N, N bytes JSON, then the buffer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                ///< as written: "BF16"
  std::optional<tensor::DType> known;  ///< nothing for sub-byte types, which no tensor of ours holds
  tensor::Shape shape;
  uint64_t begin = 0, end = 0;      ///< into the buffer
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
  uint64_t buffer = 0;              ///< offset of the buffer in the file
};

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

/// `json`: the N bytes. `buffer_bytes`: what the file holds behind them. kCorrupt where the reference reader refuses,
/// and for a name or member given twice; kUnsupported: a dtype that is not known, named.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t buffer_bytes);

/// "BF16"; nothing for a type that the format lacks.
std::optional<std::string_view> safetensors_dtype(tensor::DType dtype);

}  // namespace ckpt::formats
