#include "formats/known.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "lib/base/io.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxLooked = 10'000;

/// The names in a folder, as many as are looked at.
class Folder {
 public:
  explicit Folder(const fs::path& path) : path_(path) {
    std::error_code ec;
    fs::directory_iterator it(path, ec), end;
    for (int seen = 0; !ec && it != end && seen < kMaxLooked; it.increment(ec), ++seen) {
      std::error_code ignored;
      (it->is_directory(ignored) ? folders_ : files_).push_back(it->path().filename().string());
    }
    std::sort(files_.begin(), files_.end());
    std::sort(folders_.begin(), folders_.end());
  }

  bool file(std::string_view head, std::string_view tail = "") const { return !first(files_, head, tail).empty(); }
  bool folder(std::string_view head) const { return !first(folders_, head, "").empty(); }
  bool has(const std::string& name) const {
    return std::binary_search(files_.begin(), files_.end(), name) ||
           std::binary_search(folders_.begin(), folders_.end(), name);
  }
  /// The first file of such a name; empty: none.
  std::string first_file(std::string_view head, std::string_view tail = "") const { return first(files_, head, tail); }
  /// In one of the folders: the name with the folder before it.
  std::string first_below(std::string_view head, std::string_view tail = "") const {
    for (const std::string& name : folders_) {
      const std::string found = Folder(path_ / name).first_file(head, tail);
      if (!found.empty()) return name + "/" + found;
    }
    return "";
  }
  size_t count(std::string_view head, std::string_view tail) const {
    return static_cast<size_t>(
        std::count_if(files_.begin(), files_.end(), [&](const std::string& name) { return fits(name, head, tail); }));
  }

 private:
  static bool fits(const std::string& name, std::string_view head, std::string_view tail) {
    return name.size() >= head.size() + tail.size() && name.starts_with(head) && name.ends_with(tail);
  }
  static std::string first(const std::vector<std::string>& names, std::string_view head, std::string_view tail) {
    auto found =
        std::find_if(names.begin(), names.end(), [&](const std::string& name) { return fits(name, head, tail); });
    return found == names.end() ? "" : *found;
  }

  fs::path path_;
  std::vector<std::string> files_, folders_;
};

/// `found`: a file that shows it, below the folder; empty: it is another format.
struct Known {
  std::function<std::string(const Folder&)> find;
  const char* what;  ///< after "is "
  const char* hint;  ///< %: the file found
};

std::string if_there(const Folder& folder, const char* name) { return folder.has(name) ? name : ""; }

std::string deepspeed(const Folder& folder) {
  for (const char* tail : {"_model_states.pt", "_optim_states.pt"}) {
    if (std::string found = folder.first_file("", tail); !found.empty()) return found;
  }
  if (!folder.has("latest") && !folder.has("zero_to_fp32.py")) return "";
  return folder.first_below("", "_model_states.pt");
}

std::string dlrover(const Folder& folder) {
  if (std::string found = folder.first_file("rank_", ".pt"); !found.empty()) return found;
  return folder.has("dlrover_latest.txt") ? folder.first_below("rank_", ".pt") : "";
}

std::string component(const Folder& folder) {
  if (!folder.has("model_index.json")) return "";
  const std::string found = folder.first_below("", ".safetensors");
  return found.empty() ? "model_index.json" : found;
}

std::string snapshot(const Folder& folder) { return folder.has("snapshots") && folder.has("blobs") ? "snapshots" : ""; }

std::string ocdbt(const Folder& folder) {
  if (folder.has("manifest.ocdbt")) return "manifest.ocdbt";
  return folder.first_below("manifest.ocdbt");
}

std::string bundle(const Folder& folder) {
  if (folder.has("saved_model.pb")) return "saved_model.pb";
  return folder.first_file("", ".index").empty() ? "" : folder.first_file("", "-of-00001");
}

std::string several(const Folder& folder) {
  for (const char* tail : {".pt", ".pth", ".bin", ".ckpt"}) {
    if (folder.count("", tail) > 1) return folder.first_file("", tail);
  }
  return "";
}

const std::vector<Known>& folders() {
  static const std::vector<Known> kFolders = {
      {[](const Folder& f) { return if_there(f, "latest_universal"); }, "a DeepSpeed universal checkpoint",
       "each zero/PARAMETER/fp32.pt in it is a torch.save file that is read by itself"},
      {deepspeed, "a DeepSpeed checkpoint (ZeRO's partitions of each rank)",
       "% is read by itself; DeepSpeed's zero_to_fp32.py, which lies in the root, makes one file of the weights"},
      {[](const Folder& f) { return f.first_file("model_world_size_"); },
       "a folder of FSDP shards, one file for each rank (veRL)",
       "% is read by itself; verl's model_merger makes a Hugging Face model of all ranks"},
      {dlrover, "a DLRover checkpoint, one file for each rank",
       "% is read by itself: with DDP and Megatron rank 0 has the whole"},
      {[](const Folder& f) { return f.first_file("ckpt_", ".pt"); }, "a folder of files for each rank (ckpt_{rank}.pt)",
       "% is read by itself"},
      {[](const Folder& f) {
         return f.count("pytorch_model", ".bin") + f.count("pytorch_model", ".bin.index.json") > 0
                    ? f.first_file("pytorch_model", ".bin")
                    : "";
       },
       "a Hugging Face model in torch.save files (pytorch_model*.bin)",
       "% is read by itself; save_pretrained of transformers, with safe_serialization, makes safetensors of all"},
      {[](const Folder& f) { return f.first_file("consolidated.", ".pth"); },
       "a Llama checkpoint, one consolidated.NN.pth for each model-parallel rank",
       "% is read by itself; convert_llama_weights_to_hf.py of transformers joins the ranks"},
      {ocdbt, "an Orbax checkpoint in OCDBT, TensorStore's database",
       "written with use_ocdbt=False it is a group of Zarr arrays, which is read"},
      {component, "a diffusers pipeline, a folder for each component", "each component is read by itself: %"},
      {snapshot, "a repository in the cache of the Hugging Face hub",
       "give the folder of one revision below snapshots"},
      {bundle, "a TensorFlow checkpoint", "save the weights as safetensors or npz"},
      {[](const Folder& f) { return f.has("checkpoint_metadata.json") && f.folder("model") ? "model" : ""; },
       "a Nanotron checkpoint", "each .safetensors file in it is read by itself"},
      {several, "a folder of torch.save files, and nothing says how they belong together", "give one of them: %"},
  };
  return kFolders;
}

struct Magic {
  std::string_view start, suffix;  ///< either one; empty: not looked at
  const char* what;
  const char* hint;
};

constexpr auto kFiles = std::to_array<Magic>({
    {"", ".nemo", "a NeMo package", "unpack it with tar"},
    {"", ".bin.index.json", "the index of a Hugging Face model in torch.save files",
     "each pytorch_model*.bin is read by itself"},
    {"\x89HDF\r\n\x1a\n", ".h5", "an HDF5 file", "copy its arrays with h5py into an npz"},
    {"", ".keras", "a Keras archive", "save its weights as npz"},
    {"", ".onnx", "an ONNX model", "its initializers can be written as npz or safetensors by the onnx package"},
    {"", ".msgpack", "a msgpack file of flax",
     "flax.serialization reads it; safetensors.flax writes what is read here"},
    {"", ".pdparams", "a Paddle checkpoint", "paddle.load reads it; save numpy arrays as npz"},
    {"\x1f\x8b", ".gz", "compressed with gzip", "unpack it with gunzip"},
    {"\x28\xb5\x2f\xfd", ".zst", "compressed with zstd", "unpack it with unzstd"},
    {"", ".tar", "a tar archive", "unpack it with tar"},
});

std::optional<Error> name_file(const fs::path& path) {
  const std::string name = path.filename().string();
  std::array<std::byte, 8> first{};
  auto fd = io::open_file(path, O_RDONLY | O_NONBLOCK);
  const bool read = fd && io::pread_exact(fd->get(), first, 0, "");
  for (const Magic& magic : kFiles) {
    const bool starts = read && !magic.start.empty() && as_text(first).starts_with(magic.start);
    if (starts || (!magic.suffix.empty() && name.ends_with(magic.suffix))) {
      return Error(Code::kUnsupported, path.string(), std::string("is ") + magic.what + ", which is not read")
          .with_hint(magic.hint);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> name_unread_format(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return name_file(path);
  const Folder folder(path);
  for (const Known& known : folders()) {
    const std::string found = known.find(folder);
    if (found.empty()) continue;
    std::string hint = known.hint;
    if (const size_t at = hint.find('%'); at != std::string::npos) hint.replace(at, 1, found);
    return Error(Code::kUnsupported, path.string(), std::string("is ") + known.what + ", which is not read")
        .with_hint(hint);
  }
  return std::nullopt;
}

}  // namespace ckpt::formats
