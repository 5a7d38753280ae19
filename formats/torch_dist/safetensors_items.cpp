#include "formats/torch_dist/safetensors_items.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lib/base/io.h"

namespace ckpt::formats {

using nlohmann::json;

namespace {

constexpr uint64_t kLength = 8;

Unexpected damaged(std::string why) { return fail(Code::kCorrupt, "", std::move(why)); }

}  // namespace

bool starts_safetensors(ByteSpan first) {
  uint64_t length = 0;
  if (first.size() < kSafetensorsStart) return false;
  std::memcpy(&length, first.data(), kLength);
  return length <= kMaxSafetensorsHeader && first[kLength] == std::byte{'{'};
}

bool SafetensorsItems::begins_at(const tensor::FileRange& item) {
  std::lock_guard lock(mutex_);
  auto [it, added] = begins_.try_emplace({item.file, item.offset}, false);
  if (!added) return it->second;
  auto file = files_.open(item.file);
  std::array<std::byte, kSafetensorsStart> first{};
  it->second = file && io::pread_exact((*file)->get(), first, item.offset, "") && starts_safetensors(first);
  return it->second;
}

Result<void> SafetensorsItems::read(const tensor::FileRange& item, File& out) {
  const tensor::SourceFile& source = catalog_.files[item.file];
  CKPT_TRY_ASSIGN(auto file, files_.open(item.file));
  uint64_t length = 0;
  CKPT_TRY(io::pread_exact(file->get(), {reinterpret_cast<std::byte*>(&length), kLength}, item.offset, source.path));
  const uint64_t rest = source.size - item.offset - kLength;  // the item lies inside the file
  if (length > kMaxSafetensorsHeader || length > rest)
    return damaged("its safetensors header is longer than the file or the limit");
  std::vector<std::byte> text(length);
  CKPT_TRY(io::pread_exact(file->get(), text, item.offset + kLength, source.path));
  CKPT_TRY_ASSIGN(out.header, parse_safetensors_header(as_text(text), rest - length));
  out.header.buffer = item.offset + kLength + length;
  std::sort(out.header.entries.begin(), out.header.entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  auto info = out.header.metadata.find("DCP_SHARDING_INFO");
  json doc = info == out.header.metadata.end() ? json::object() : json::parse(info->second, nullptr, false);
  if (!doc.is_object()) return damaged("its DCP_SHARDING_INFO is no JSON object");
  for (const auto& entry : doc.items()) {
    if (!entry.value().is_object() || !entry.value().contains("saved_offsets") ||
        !entry.value()["saved_offsets"].is_array())
      continue;
    tensor::Shape& offset = out.offsets[entry.key()];
    for (const json& n : entry.value()["saved_offsets"]) {
      if (!n.is_number_unsigned()) return damaged("its DCP_SHARDING_INFO has malformed offsets");
      offset.push_back(n.get<uint64_t>());
    }
  }
  return {};
}

Result<tensor::FileRange> SafetensorsItems::find(const tensor::Tensor& tensor, const tensor::Shard& shard) {
  std::shared_ptr<const File> file;
  {
    std::lock_guard lock(mutex_);
    auto& known = read_[{shard.item.file, shard.item.offset}];
    if (!known) {
      auto made = std::make_shared<File>();
      auto done = read(shard.item, *made);
      if (done) made->good = true;
      else made->error = done.error();
      known = made;
    }
    file = known;
  }
  if (!file->good) return file->error;
  const auto& entries = file->header.entries;
  auto entry = std::lower_bound(entries.begin(), entries.end(), tensor.key,
                                [](const auto& e, const std::string& key) { return e.name < key; });
  if (entry == entries.end() || entry->name != tensor.key) return damaged("the safetensors data does not have it");
  auto offset = file->offsets.find(tensor.key);
  if (entry->shape != shard.shape || (offset != file->offsets.end() && offset->second != shard.offset)) {
    return damaged("the safetensors data holds another chunk of it");
  }
  if (entry->known != tensor.dtype) return damaged("the safetensors data holds " + entry->dtype);
  return tensor::FileRange{shard.item.file, file->header.buffer + entry->begin, entry->end - entry->begin};
}

}  // namespace ckpt::formats
