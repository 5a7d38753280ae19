#include <fcntl.h>

#include <array>

#include "formats/format.h"
#include "formats/gguf/reader.h"
#include "formats/known.h"
#include "formats/megatron/metadata_json.h"
#include "formats/npy/reader.h"
#include "formats/safetensors/reader.h"
#include "formats/torch_dist/reader.h"
#include "formats/torch_save/reader.h"
#include "formats/zarr/reader.h"
#include "lib/base/io.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

std::span<const Format> formats() {
  static constexpr std::array kFormats = {
      Format{"zarr", "Megatron-Core distributed checkpoint, zarr backend", recognises_megatron_zarr,
             read_megatron_zarr},
      Format{"torch_dist", "Megatron-Core distributed checkpoint, torch_dist backend", recognises_torch_dist,
             read_torch_dist},
      Format{"dcp", "PyTorch distributed checkpoint", recognises_dcp, read_torch_dist},
      Format{"npz", "numpy archive of arrays (.npz)", recognises_npz, read_npz},
      Format{"torch_save", "torch.save file", recognises_torch_save, read_torch_save},
      Format{"safetensors", "safetensors file, or folder of them", recognises_safetensors, read_safetensors},
      Format{"zarr2", "Zarr version 2 array or group", recognises_zarr2, read_zarr2},
      Format{"zarr3", "Zarr version 3 array or group", recognises_zarr3, read_zarr3},
      Format{"gguf", "GGUF file, or folder of its parts", recognises_gguf, read_gguf},
      Format{"npy", "numpy array (.npy), or folder of them", recognises_npy, read_npy},
  };
  return kFormats;
}

namespace {

const Format* find_format(const fs::path& path) {
  for (const Format& format : formats()) {
    if (format.recognises(path)) return &format;
  }
  return nullptr;
}

/// The one torch.save file of a folder, as `--to torch` writes it and hubs hold it. Nothing: there is none, or several,
/// or others that say that it is a part: of a save by ranks, or of one that did not finish.
std::optional<fs::path> only_torch_file(const fs::path& path) {
  std::optional<fs::path> out;
  std::error_code ec;
  if (fs::exists(path / "common.pt", ec)) return std::nullopt;
  fs::directory_iterator it(path, ec), end;
  for (int seen = 0; !ec && it != end && seen < 10'000; it.increment(ec), ++seen) {
    const std::string name = it->path().filename().string();
    const bool of_ranks =
        name.find("_rank_") != std::string::npos || name.find("rank_") == 0 || name.find("ckpt_") == 0;
    const bool of_parts = name.find("-of-") != std::string::npos || name.find("consolidated.") == 0 ||
                          name.find(".index.json") != std::string::npos;
    if (of_ranks || of_parts || it->path().extension() == ".distcp") return std::nullopt;
    std::error_code ignored;
    // What is stored beside a model by trainers is no model.
    if (name == "training_args.bin" || name == "optimizer.pt" || name == "scheduler.pt" ||
        name.rfind("rng_state", 0) == 0)
      continue;
    const std::string extension = it->path().extension().string();
    const bool torch = extension == ".pt" || extension == ".pth" || extension == ".bin" || extension == ".ckpt";
    if (!torch || !it->is_regular_file(ignored)) continue;
    if (out) return std::nullopt;
    out = it->path();
  }
  return ec ? std::nullopt : out;
}

/// A trainer's folder around the checkpoint: Megatron's save root, NeMo 2 and NeMo packages. Nothing: none of them.
std::optional<fs::path> inner_checkpoint(const fs::path& path) {
  if (auto latest = io::read_file(path / "latest_checkpointed_iteration.txt", 64)) {
    std::string word = latest->substr(0, latest->find_first_of(" \r\n"));
    if (word == "release") return path / word;
    if (!word.empty() && word.size() <= 18 && word.find_first_not_of("0123456789") == std::string::npos) {
      std::string digits = word.size() < 7 ? std::string(7 - word.size(), '0') + word : word;
      return path / ("iter_" + digits);
    }
  }
  for (const char* name : {"weights", "model_weights"}) {
    if (find_format(path / name) != nullptr) return path / name;
  }
  return only_torch_file(path);
}

bool any_entry(const fs::path& path, bool (*wanted)(const fs::directory_entry& entry)) {
  std::error_code ec;
  fs::directory_iterator it(path, ec), end;
  for (int seen = 0; !ec && it != end && seen < 10'000; it.increment(ec), ++seen) {
    if (wanted(*it)) return true;
  }
  return false;
}

/// What a path is that no reader takes. Nothing: not known.
std::optional<Error> explain_known(const fs::path& path) {
  const std::string subject = path.string();
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return name_unread_format(path);
  auto megatron = read_megatron_metadata(path);
  if (!megatron) return std::move(megatron).error();
  if (any_entry(path, [](const fs::directory_entry& entry) {
        std::error_code ignored;
        return entry.path().filename().string().starts_with("mp_rank_") && entry.is_directory(ignored);
      })) {
    return Error(Code::kUnsupported, subject,
                 "is a Megatron checkpoint of the old torch format (mp_rank_XX), which is not read")
        .with_hint("each mp_rank_XX/model_optim_rng.pt can be inspected by itself");
  }
  if (any_entry(path, [](const fs::directory_entry& entry) { return entry.path().extension() == ".distcp"; })) {
    return Error(Code::kCorrupt, subject,
                 "holds .distcp files but no .metadata: the save did not finish, or files were lost");
  }
  if (fs::exists(path / "common.pt", ec)) {
    return Error(Code::kCorrupt, subject, "holds common.pt but no metadata.json: the save did not finish");
  }
  return name_unread_format(path);
}

Error explain(const fs::path& path) {
  if (auto known = explain_known(path)) return *known;
  return Error(Code::kUnsupported, path.string(), "is no checkpoint that ckpt knows");
}

/// Folders that cannot be listed are a matter of permission, not of format.
Result<void> check_access(const fs::path& path) {
  CKPT_TRY_ASSIGN(UniqueFd probe, io::open_file(path, O_RDONLY | O_NONBLOCK));
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    fs::directory_iterator it(path, ec);
    if (!ec) (void)fs::exists(path / ".metadata", ec);
    if (ec) return sys_error(ec.value(), path.string(), "cannot look into the folder");
  }
  return {};
}

Result<tensor::Catalog> open_as(const fs::path& path, const ReadOptions& options) {
  for (const Format& format : formats()) {
    if (format.name != options.from) continue;
    if (!format.recognises(path))
      return fail(Code::kUnsupported, path.string(), "is no " + options.from + " checkpoint");
    return format.read(path, options);
  }
  return fail(Code::kUsage, options.from, "is no format that ckpt reads");
}

}  // namespace

bool looks_like_checkpoint(const fs::path& path) {
  return find_format(path) != nullptr || only_torch_file(path).has_value() || explain_known(path).has_value();
}

std::string_view format_name_of(const fs::path& path) {
  const Format* format = find_format(path);
  return format != nullptr ? format->name : std::string_view();
}

Result<tensor::Catalog> open_checkpoint(const fs::path& path, const ReadOptions& options) {
  CKPT_TRY(check_access(path));
  if (options.from != "auto") return open_as(path, options);
  if (const Format* format = find_format(path)) {
    // An unfinished Megatron save with the zarr backend looks like a group of foreign arrays.
    std::error_code ec;
    if (format->name == "zarr2" && fs::exists(path / "common.pt", ec)) return explain(path);
    return format->read(path, options);
  }
  std::error_code ec;
  auto inner = fs::is_directory(path, ec) ? inner_checkpoint(path) : std::nullopt;
  if (!inner) return explain(path);
  if (!fs::exists(*inner, ec))
    return fail(Code::kCorrupt, path.string(),
                "names " + inner->filename().string() + " as its latest checkpoint, which is missing");
  CKPT_TRY(check_access(*inner));
  const Format* format = find_format(*inner);
  if (format == nullptr) {  // a folder that holds one torch.save file, in a save root
    if (auto file = only_torch_file(*inner)) {
      inner = file;
      format = find_format(*inner);
    }
  }
  if (format == nullptr) return explain(*inner);
  CKPT_TRY_ASSIGN(tensor::Catalog catalog, format->read(*inner, options));
  catalog.warnings.insert(catalog.warnings.begin(), "the checkpoint lies in " + inner->string());
  return catalog;
}

}  // namespace ckpt::formats
