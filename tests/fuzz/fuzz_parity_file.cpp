// Parity files: as they are; with checksums that fit whatever they say, so that what they say is reached; and a table
// of files alone. The parity itself is a hole: its length does not count.
#include <fcntl.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lib/base/io.h"
#include "lib/parity/parity_file.h"

using namespace ckpt;
using namespace ckpt::parity;
using Json = nlohmann::json;

namespace {

constexpr uint64_t kData = 4096;
constexpr size_t kPreamble = 40;

void check_names(const FileTable& table) {
  for (const FileEntry& entry : table.entries) {
    const std::string name = "/" + entry.name + "/";
    if (name.find("/../") != name.npos || name.find("/./") != name.npos) std::abort();
    if (!entry.name.empty() && (entry.name.front() == '/' || name.find("//") != name.npos)) std::abort();
  }
}

void open(std::string_view content, uint64_t hole_at = 0, uint64_t hole = 0) {
  UniqueFd fd(::memfd_create("parity", MFD_CLOEXEC));
  if (!io::pwrite_all(fd.get(), as_bytes(content.substr(0, hole_at)), 0, "memfd") ||
      !io::pwrite_all(fd.get(), as_bytes(content.substr(hole_at)), hole_at + hole, "memfd"))
    return;
  auto file = ParityFile::read(std::move(fd), "input");
  if (!file) return;
  check_names(file->table());
  const SetRecord& record = file->record();
  const auto again = record_from_json(to_json(record));
  if (!again || *again != record) std::abort();
  std::vector<std::byte> block(record.block_bytes(0));
  (void)file->read_block(0, 0, block);
}

/// Footer, sums and table of the input in a file whose checksums and lengths are right.
void open_repaired(std::string_view content) {
  uint64_t footer_at = 0, footer_bytes = 0;
  if (content.size() < kData) return;
  std::memcpy(&footer_at, content.data() + 16, 8), std::memcpy(&footer_bytes, content.data() + 24, 8);
  if (footer_at < kData || footer_at > content.size()) return;
  Json footer = Json::parse(content.substr(footer_at), nullptr, false);
  auto number = [&](const char* name) -> uint64_t {
    return footer.contains(name) && footer[name].is_number_unsigned() ? footer[name].get<uint64_t>() : 0;
  };
  if (!footer.is_object() || number("chunk") > 1 << 20 || number("parity") > 64) return;
  // The corpus has the parity of its chunks; what a mutation says of them is made true by a hole.
  const uint64_t parity = number("chunk") * number("parity"), sums = 4 * (number("data_sums") + number("parity_sums"));
  const uint64_t had = footer_at - kData - std::min(footer_at - kData, sums + number("table_bytes"));
  const std::string told(content.substr(kData + had, footer_at - kData - had));
  footer["sums_crc"] = crc32c(0, as_bytes(told));
  const uint64_t member = number("member");
  if (footer.contains("members") && footer["members"].is_array() && member < footer["members"].size() &&
      footer["members"][member].is_object() && number("data_sums") <= told.size() / 4)
    footer["members"][member]["digest"] = to_hex(xxh3_128(as_bytes(told).first(4 * number("data_sums"))));
  const std::string text = footer.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string head(content.substr(0, kPreamble));
  const uint32_t crc = crc32c(0, as_bytes(text));
  footer_at = kData + parity + told.size(), footer_bytes = text.size();
  std::memcpy(head.data() + 12, &crc, 4), std::memcpy(head.data() + 16, &footer_at, 8);
  std::memcpy(head.data() + 24, &footer_bytes, 8);
  const uint32_t head_crc = crc32c(0, as_bytes(std::string_view(head).substr(0, kPreamble - 4)));
  std::memcpy(head.data() + kPreamble - 4, &head_crc, 4);
  head.resize(kData);
  open(head + told + text, kData, parity);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  open(content);
  open_repaired(content);
  if (const auto table = FileTable::parse(as_bytes(content), "input")) {
    check_names(*table);
    const auto again = FileTable::parse(as_bytes(table->encode()), "again");
    if (!again || *again != *table) std::abort();
  }
  return 0;
}
