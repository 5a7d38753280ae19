#include "formats/gguf/reader.h"

#include <fcntl.h>

#include <algorithm>
#include <map>

#include "formats/finish.h"
#include "formats/folders.h"
#include "formats/gguf/header.h"
#include "lib/base/io.h"
#include "lib/base/json_writer.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kFirstRead = 1 << 20;  ///< holds most headers without a vocabulary
constexpr uint64_t kMaxHeader = 512 << 20;

bool is_gguf_name(const std::string& name) { return name.ends_with(".gguf"); }

std::vector<std::string> gguf_files(const fs::path& dir) {
  std::vector<std::string> out;
  std::error_code ec;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
    std::string name = it->path().filename().string();
    if (is_gguf_name(name) && it->is_regular_file(ec)) out.push_back(std::move(name));
  }
  std::sort(out.begin(), out.end());
  return out;
}

class Reader {
 public:
  Reader(tensor::Catalog& catalog, DamageLog& damage, const ReadOptions& options)
      : catalog_(catalog), damage_(damage), options_(options) {
    facts_.open('{');
    quantised_types_.open('{');
  }

  /// Returns the number of files that the model is cut into, as this one says.
  Result<uint64_t> add_file(const std::string& name) {
    const auto index = static_cast<uint32_t>(catalog_.files.size());
    catalog_.files.push_back({name, 0});
    CKPT_TRY_ASSIGN(UniqueFd fd, catalog_.open_file(index));
    CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd.get(), name));
    catalog_.files[index].size = static_cast<uint64_t>(st.st_size);
    CKPT_TRY_ASSIGN(GgufHeader header, read_header(fd.get(), catalog_.files[index]));
    check_overlaps(header, name);
    for (GgufTensor& t : header.tensors) add_tensor(index, std::move(t));
    if (index == 0) {
      facts_.members("version", header.version, "alignment", header.alignment);
      facts_.feed("metadata", header.metadata);
    }
    return header.parts;
  }

  void finish() {
    for (const auto& use : quantised_) {
      catalog_.warnings.push_back(
          std::to_string(use.second.count) + (use.second.count == 1 ? " tensor of type " : " tensors of type ") +
          std::string(use.second.type->name) + " given as rows of bytes: " + std::to_string(use.second.type->block) +
          " elements in " + std::to_string(use.second.type->bytes) + " bytes");
    }
    quantised_types_.close();
    facts_.feed("quantised", quantised_types_.take());
    facts_.close();
    catalog_.metadata_json = facts_.take();
  }

 private:
  struct Use {
    const GgmlType* type = nullptr;
    uint64_t count = 0;
  };

  /// How long a header is shows when it was parsed: more is read until it fits.
  Result<GgufHeader> read_header(int fd, const tensor::SourceFile& file) const {
    const uint64_t most = std::min({file.size, kMaxHeader, options_.max_metadata_bytes});
    for (uint64_t want = kFirstRead;; want *= 8) {
      std::vector<std::byte> bytes(std::min(want, most));
      CKPT_TRY(io::pread_exact(fd, bytes, 0, file.path));
      auto header = parse_gguf_header(bytes);
      if (!header) {
        header.error().subject = file.path;
        return std::move(header).error();
      }
      if (*header) return std::move(**header);
      if (bytes.size() == most)
        return fail(Code::kCorrupt, file.path,
                    most == file.size ? "the header is cut off" : "the header is larger than the limit");
    }
  }

  void check_overlaps(const GgufHeader& header, const std::string& file) {
    std::vector<const GgufTensor*> order;
    for (const GgufTensor& t : header.tensors) {
      if (t.length > 0) order.push_back(&t);
    }
    std::sort(order.begin(), order.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i]->offset - order[i - 1]->offset < order[i - 1]->length) {
        damage_.add(order[i]->name, file, order[i]->offset, "overlaps " + order[i - 1]->name);
      }
    }
  }

  void add_tensor(uint32_t file, GgufTensor t) {
    if (t.type == nullptr) {
      catalog_.unsupported.push_back({t.name, "ggml type " + std::to_string(t.type_number) + " is not known"});
      return;
    }
    const tensor::SourceFile& source = catalog_.files[file];
    if (t.length > 0 && (t.offset > source.size || t.length > source.size - t.offset)) {
      damage_.add(t.name, source.path, t.offset, "ends past the end of the file");
      return;
    }
    if (!t.type->dtype) {
      quantised_[t.type->number].type = t.type;
      ++quantised_[t.type->number].count;
      quantised_types_.key_text(t.name);
      quantised_types_.string(t.type->name);
    }
    tensor::Tensor& out = catalog_.tensors.emplace_back();
    out.key = std::move(t.name);
    out.dtype = t.type->dtype.value_or(tensor::DType::kUint8);
    out.shape = std::move(t.shape);
    if (t.length == 0) return;
    tensor::Shard& shard = out.shards.emplace_back();
    shard.offset.assign(out.shape.size(), 0);
    shard.shape = out.shape;
    shard.where = {file, t.offset, t.length};
  }

  tensor::Catalog& catalog_;
  DamageLog& damage_;
  const ReadOptions& options_;
  std::map<uint32_t, Use> quantised_;
  JsonWriter facts_, quantised_types_;
};

Result<void> read_folder(const fs::path& path, Reader& reader, DamageLog& damage) {
  const std::vector<std::string> files = gguf_files(path);
  for (const std::string& file : files) {
    CKPT_TRY_ASSIGN(uint64_t parts, reader.add_file(file));
    if (parts == files.size()) continue;
    if (parts <= 1 || parts < files.size())
      return fail(Code::kUnsupported, path.string(), "holds several GGUF models: give one file");
    damage.add("", file, std::nullopt,
               "is one of " + std::to_string(parts) + " parts, of which " + std::to_string(files.size()) + " are here");
    break;
  }
  return {};
}

}  // namespace

bool recognises_gguf(const fs::path& path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) return !gguf_files(path).empty();
  if (!fs::is_regular_file(path, ec)) return false;
  if (is_gguf_name(path.filename().string())) return true;
  auto fd = io::open_file(path, O_RDONLY | O_NONBLOCK);
  char magic[4] = {};
  return fd && io::pread_exact(fd->get(), std::as_writable_bytes(std::span(magic)), 0, "") &&
         std::string_view(magic, 4) == "GGUF";
}

Result<tensor::Catalog> read_gguf(const fs::path& path, const ReadOptions& options) {
  tensor::Catalog catalog;
  catalog.format = "gguf";
  catalog.root = path;
  DamageLog damage;
  Reader reader(catalog, damage, options);
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    CKPT_TRY(read_folder(path, reader, damage));
  } else {
    CKPT_TRY_ASSIGN(uint64_t parts, reader.add_file(path.filename().string()));
    if (parts > 1)
      catalog.warnings.push_back("one of " + std::to_string(parts) + " parts: give the folder to read all");
  }
  reader.finish();
  return finish_catalog(std::move(catalog), std::move(damage), options);
}

}  // namespace ckpt::formats
