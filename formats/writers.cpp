#include "formats/writers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/common_state.h"
#include "formats/npy/writer.h"
#include "formats/safetensors/writer.h"
#include "formats/torch_dist/writer.h"
#include "formats/torch_save/walker.h"
#include "formats/torch_save/writer.h"
#include "formats/zarr/writer.h"
#include "lib/base/io.h"

namespace ckpt::formats {

std::span<const Writer> writers() {
  static constexpr std::array<std::string_view, 1> kSafetensors = {".safetensors"};
  static constexpr std::array<std::string_view, 4> kTorch = {".pt", ".pth", ".bin", ".ckpt"};
  static constexpr std::array kWriters = {
      Writer{"torch_dist",
             "Megatron's torch_dist; of a plain torch checkpoint the same without Megatron's files",
             {},
             true,
             true,
             torch_dist::plan_torch_dist},
      Writer{"dcp", "a plain torch distributed checkpoint, of any source", {}, true, true, torch_dist::plan_dcp},
      Writer{"safetensors", "one file, or shards with an index", kSafetensors, false, true, plan_safetensors},
      Writer{"torch", "one file of torch.save, nested as the keys were", kTorch, false, false, plan_torch_save},
      Writer{"zarr3", "a Zarr version 3 group, uncompressed", {}, true, false, plan_zarr3},
      Writer{"npy", "a folder of numpy arrays", {}, false, false, plan_npy},
  };
  return kWriters;
}

const Writer* find_writer(std::string_view name) {
  for (const Writer& writer : writers()) {
    if (writer.name == name) return &writer;
  }
  return nullptr;
}

Error with_causes(Error error, std::vector<std::string> causes) {
  constexpr size_t kMost = 20;
  const size_t more = causes.size() > kMost ? causes.size() - kMost : 0;
  causes.resize(causes.size() - more);
  if (more > 0) causes.push_back(fmt::format("and {} more", more));
  error.causes = std::move(causes);
  return error;
}

Result<void> refuse_what_is_no_tensor(const tensor::Selection& selection, std::string_view format) {
  std::vector<std::string> left;
  const tensor::Catalog& source = *selection.source;
  if (selection.common && source.common && source.format == "torch_save") {
    CKPT_TRY_ASSIGN(left, names_of_other_values(source));
  } else if (selection.common && source.common) {
    CKPT_TRY_ASSIGN(const std::string common, common_state_json(source));
    if (common != "{}") left.push_back("the common state (iteration, arguments, schedulers)");
  }
  for (const tensor::ObjectTarget& object : selection.objects) left.push_back(object.key);
  if (left.empty()) return {};
  return with_causes(Error(Code::kUsage, source.root.string(), fmt::format("holds what {} has no place for", format))
                         .with_hint("leave it out with --tensors-only"),
                     std::move(left));
}

namespace {

nlohmann::json entries_of(const tensor::Catalog& source) {
  static const std::map<std::string_view, const char*> kNames = {
      {"safetensors", "__metadata__"}, {"gguf", "metadata"}, {"zarr2", "attributes"}, {"zarr3", "attributes"}};
  auto name = kNames.find(source.format);
  auto facts = nlohmann::json::parse(name == kNames.end() ? "" : source.metadata_json, nullptr, false);
  if (!facts.is_object() || !facts.contains(name->second) || !facts[name->second].is_object())
    return nlohmann::json::object();
  return std::move(facts[name->second]);
}

}  // namespace

std::string metadata_of(const tensor::Catalog& source) { return entries_of(source).dump(-1, ' ', true); }

std::string lost_metadata(const tensor::Catalog& source, std::string_view writer) {
  if (source.format == writer && writer == "safetensors") return "";
  auto entries = entries_of(source);
  if (source.format == "safetensors" && entries.value("format", nlohmann::json()) == "pt") entries.erase("format");
  if (entries.empty()) return "";
  return fmt::format("{} of the source's metadata {} no place in {}: ckpt load-metadata prints {}",
                     entries.size() == 1 ? "1 entry" : fmt::format("{} entries", entries.size()),
                     entries.size() == 1 ? "has" : "have", writer, entries.size() == 1 ? "it" : "them");
}

Result<void> copy_to(const tensor::Catalog& source, const tensor::FileRange& range,
                     const tensor::OutputFile::Sink& sink) {
  constexpr uint64_t kBlock = 256 << 10;
  CKPT_TRY_ASSIGN(UniqueFd file, source.open_file(range.file));
  std::string block;
  for (uint64_t at = 0; at < range.length; at += block.size()) {
    block.resize(std::min(kBlock, range.length - at));
    MutableByteSpan bytes(reinterpret_cast<std::byte*>(block.data()), block.size());
    CKPT_TRY(io::pread_exact(file.get(), bytes, range.offset + at, source.files[range.file].path));
    CKPT_TRY(sink(block));
  }
  return {};
}

}  // namespace ckpt::formats
