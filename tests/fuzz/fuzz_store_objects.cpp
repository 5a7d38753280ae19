// Objects of a store from a stranger: what is accepted is written again as it was.
#include <cstdint>
#include <cstdlib>

#include "lib/repository/documents.h"
#include "lib/repository/pack.h"
#include "lib/repository/tree.h"

using namespace ckpt;
using namespace ckpt::repository;

namespace {

void check(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

/// The first byte says what it is; digests, which a stranger can make, are made here.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const ByteSpan bytes(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  const std::string text(as_text(bytes));
  switch (data[0] % 6) {
    case 0: {
      const uint64_t pack = bytes.size() + (1 << 20);
      if (auto table = parse_table(bytes, pack, "")) check(encode_table(*table) == text);
      break;
    }
    case 1: {
      std::string whole = text;
      const Id id = IdBuilder().of(as_bytes(whole));
      whole.append(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size());
      (void)parse_index(as_bytes(whole), "").has_value();
      break;
    }
    case 2:
      if (auto tree = parse_tree(bytes, "")) check(encode_tree(*tree) == text);
      break;
    case 3: {
      uint64_t sum = 0;
      const bool ok = read_list(bytes, 1 << 20, "", [&](const Extent& extent) -> Result<void> {
                        sum += extent.length;
                        return {};
                      }).has_value();
      check(!ok || sum == 1 << 20);
      break;
    }
    case 4: {
      const std::string line = text.substr(0, text.find('\n')) + "\n";
      (void)parse_ref(line + to_hex(IdBuilder().of(as_bytes(line))) + "\n", "n", IdBuilder(), "").has_value();
      break;
    }
    default:
      (void)parse_marker(text, "").has_value();
      (void)parse_condemned(text, "").has_value();
      (void)parse_config(text, "").has_value();
  }
  return 0;
}
