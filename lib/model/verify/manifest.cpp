#include "lib/model/verify/manifest.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "formats/torch_dist/metadata.h"
#include "lib/base/checked.h"
#include "lib/base/file_stream.h"
#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/base/json_reader.h"
#include "lib/base/json_writer.h"
#include "lib/base/replace_file.h"
#include "lib/base/worker_pool.h"
#include "lib/model/verify/folder.h"

namespace ckpt::model {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kSchema = "ckpt.manifest/1";
constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
constexpr uint64_t kTensorBlock = 4 << 20;
constexpr const char* kName = "ckpt.manifest.json";

size_t hex_digits(HashKind kind) { return kind == HashKind::kXxh3 ? 32 : 64; }

/// The document, member by member; a wrong type ends in `fault`.
class Parser {
 public:
  explicit Parser(std::string_view text) : json_(text, {8, size_t{1} << 26}) {}

  Result<Manifest> run() {
    std::string schema, hash;
    object([&](const std::string& key) {
      if (key == "schema") schema = text();
      else if (key == "format") out_.format = text();
      else if (key == "hash") hash = text();
      else if (key == "block") out_.block = number();
      else if (key == "files") object([&](const std::string& name) { file(name); });
      else if (key == "tensors") object([&](const std::string& name) { tensor(name); });
      else json_.skip();
    });
    json_.finish();
    if (json_.failed()) return fail(Code::kCorrupt, "", "malformed manifest: " + json_.fault());
    if (!fault_.empty()) return fail(Code::kCorrupt, "", "malformed manifest: " + fault_);
    if (schema != kSchema) {
      if (schema.substr(0, 14) == kSchema.substr(0, 14))
        return fail(Code::kUnsupported, "", "is of the version " + schema);
      return fail(Code::kCorrupt, "", "is no " + std::string(kSchema) + " document");
    }
    auto kind = hash_from_name(hash);
    if (!kind) return fail(Code::kUnsupported, "", "names the hash " + hash + ", which is not known");
    out_.hash = *kind;
    CKPT_TRY(check());
    return std::move(out_);
  }

 private:
  void bad(std::string what) {
    if (fault_.empty()) fault_ = std::move(what);
    json_.skip();
  }
  std::string text() {
    if (json_.peek() == '"') return std::string(json_.string());
    bad("a text is missing");
    return "";
  }
  uint64_t number() {
    if (json_.peek() != 'n') return bad("a number is missing"), 0;
    auto value = json_.number();
    if (value && !value->negative) return value->magnitude;
    if (fault_.empty()) fault_ = "a number is no size";
    return 0;
  }
  template <class Each>
  void object(Each each) {
    if (json_.peek() != '{') return bad("an object is missing");
    json_.enter();
    for (bool first = true; json_.next('{', first); first = false) each(std::string(json_.key()));
  }
  template <class Each>
  void array(Each each) {
    if (json_.peek() != '[') return bad("a list is missing");
    json_.enter();
    for (bool first = true; json_.next('[', first); first = false) each();
  }

  void file(const std::string& name) {
    Manifest::File file;
    object([&](const std::string& key) {
      if (key == "size") file.size = number();
      else if (key == "hashes") array([&] { file.hashes.push_back(text()); });
      else json_.skip();
    });
    if (!out_.files.emplace(name, std::move(file)).second && fault_.empty()) fault_ = "two files are called " + name;
  }
  void tensor(const std::string& name) {
    Manifest::TensorHash tensor;
    object([&](const std::string& key) {
      if (key == "dtype") tensor.dtype = text();
      else if (key == "shape") array([&] { tensor.shape.push_back(number()); });
      else if (key == "hash") tensor.hash = text();
      else json_.skip();
    });
    if (!out_.tensors.emplace(name, std::move(tensor)).second && fault_.empty())
      fault_ = "two tensors are called " + name;
  }

  Result<void> check() const {
    auto malformed = [](const std::string& what) { return fail(Code::kCorrupt, "", "malformed manifest: " + what); };
    if (out_.block == 0) return malformed("its blocks have no length");
    auto is_hash = [&](const std::string& hash) {
      return is_hex(hash, hex_digits(out_.hash));
    };
    for (const auto& [name, file] : out_.files) {
      if (!formats::is_safe_relative_path(name))
        return malformed("the path \"" + name + "\" leads out of the checkpoint");
      const uint64_t blocks = file.size / out_.block + (file.size % out_.block != 0 ? 1 : 0);
      if (file.hashes.size() != blocks) return malformed(name + " has another number of hashes than blocks");
      if (!std::all_of(file.hashes.begin(), file.hashes.end(), is_hash))
        return malformed(name + " has a hash that is none");
    }
    for (const auto& [name, tensor] : out_.tensors) {
      if (!is_hash(tensor.hash)) return malformed(name + " has a hash that is none");
    }
    return {};
  }

  JsonReader json_;
  Manifest out_;
  std::string fault_;
};

/// What several threads fill.
class ManifestBuilder {
 public:
  ManifestBuilder(const tensor::Catalog& catalog, const ManifestOptions& options, ProgressSink& progress,
                  const Cancel& cancel)
      : catalog_(catalog), options_(options), progress_(progress), cancel_(cancel), cache_(catalog) {
    out_.format = catalog.format;
    out_.hash = options.hash;
  }

  Result<Manifest> run(const std::vector<FolderEntry>& entries) {
    uint64_t total = 0;
    for (const FolderEntry& entry : entries) {
      total += entry.size;
      files_.root = catalog_.root;
      files_.files.push_back({entry.path, entry.size});
      Manifest::File file;
      file.size = entry.size;
      file.hashes.resize(entry.size / out_.block + (entry.size % out_.block != 0 ? 1 : 0));
      slots_.push_back(&(out_.files[entry.path] = std::move(file)));
    }
    for (const tensor::Tensor& t : catalog_.tensors) total += options_.tensors ? t.bytes() : 0;
    progress_.begin("hash", total);
    WorkerPool pool;
    for (size_t i = 0; i < slots_.size(); ++i) {
      for (size_t block = 0; block < slots_[i]->hashes.size(); ++block) {
        if (!pool.submit([this, i, block] { return hash_block(i, block); })) break;
      }
    }
    for (const tensor::Tensor& t : catalog_.tensors) {
      if (!options_.tensors || !pool.submit([this, &t] { return hash_one(t); })) break;
    }
    CKPT_TRY(pool.finish());
    return std::move(out_);
  }

 private:
  Result<void> advance(uint64_t bytes) {
    progress_.advance(bytes);
    return cancel_.check();
  }

  Result<void> hash_block(size_t index, size_t block) {
    Manifest::File& file = *slots_[index];
    CKPT_TRY_ASSIGN(UniqueFd fd, files_.open_file(static_cast<uint32_t>(index)));
    Hasher hasher(options_.hash);
    FileStream stream;
    CKPT_TRY(stream.read(fd.get(), block * out_.block, out_.block_length(file, block), files_.files[index].path,
                         [&](ByteSpan part) {
                           hasher.update(part);
                           return advance(part.size());
                         }));
    file.hashes[block] = hasher.finish();
    return {};
  }

  Result<void> hash_one(const tensor::Tensor& t) {
    CKPT_TRY_ASSIGN(std::string hash,
                    hash_tensor(catalog_, t, cache_, options_.hash, [&](uint64_t bytes) { return advance(bytes); }));
    std::lock_guard lock(mutex_);
    out_.tensors[t.key] = {std::string(tensor::dtype_name(t.dtype)), t.shape, std::move(hash)};
    return {};
  }

  const tensor::Catalog& catalog_;
  const ManifestOptions& options_;
  ProgressSink& progress_;
  const Cancel& cancel_;
  tensor::Catalog files_;  ///< every file of the folder, to be opened as the catalog's own are
  tensor::FileCache cache_;
  std::vector<Manifest::File*> slots_;
  std::mutex mutex_;
  Manifest out_;
};

}  // namespace

std::string_view hash_name(HashKind kind) { return kind == HashKind::kXxh3 ? "xxh3-128" : "sha256"; }

std::optional<HashKind> hash_from_name(std::string_view name) {
  for (HashKind kind : {HashKind::kXxh3, HashKind::kSha256}) {
    if (name == hash_name(kind)) return kind;
  }
  return std::nullopt;
}

Hasher::Hasher(HashKind kind) {
  if (kind == HashKind::kXxh3) xxh3_.emplace();
  else sha256_.emplace();
}
void Hasher::update(ByteSpan data) {
  if (xxh3_) xxh3_->update(data);
  else sha256_->update(data);
}
std::string Hasher::finish() { return xxh3_ ? to_hex(xxh3_->digest()) : sha256_->finish_hex(); }

std::string to_json(const Manifest& manifest) {
  JsonWriter json;
  json.open('{');
  json.members("schema", kSchema, "format", manifest.format, "hash", hash_name(manifest.hash), "block", manifest.block);
  json.open("files", '{');
  for (const auto& [name, file] : manifest.files) {
    json.key_text(name);
    json.row_of("size", file.size, "hashes", file.hashes);
  }
  json.close();
  if (!manifest.tensors.empty()) json.open("tensors", '{');
  for (const auto& [name, tensor] : manifest.tensors) {
    json.key_text(name);
    json.row_of("dtype", tensor.dtype, "shape", tensor.shape, "hash", tensor.hash);
  }
  return std::move(json).finish();
}

Result<Manifest> parse_manifest(std::string_view text) { return Parser(text).run(); }

Result<Manifest> read_manifest(const fs::path& path) {
  CKPT_TRY_ASSIGN(std::string text, io::read_file(path, kMaxBytes));
  auto manifest = parse_manifest(text);
  if (!manifest) {
    manifest.error().subject = path.string();
    return manifest;
  }
  manifest->name = path.filename().string();
  return manifest;
}

fs::path default_manifest_path(const fs::path& root) {
  std::error_code ec;
  return fs::is_directory(root, ec) ? root / kName : fs::path(root.string() + "." + kName);
}

Result<Manifest> make_manifest(const tensor::Catalog& catalog, const fs::path& except, const ManifestOptions& options,
                               ProgressSink& progress, const Cancel& cancel) {
  CKPT_TRY_ASSIGN(std::vector<FolderEntry> entries, list_files(catalog.root));
  std::error_code ec;
  std::erase_if(entries,
                [&](const FolderEntry& entry) { return fs::equivalent(catalog.root / entry.path, except, ec) && !ec; });
  return ManifestBuilder(catalog, options, progress, cancel).run(entries);
}

Result<void> write_manifest(const Manifest& manifest, const fs::path& path) {
  return io::replace_file(path, to_json(manifest), {0644, true});
}

Result<std::string> hash_tensor(const tensor::Catalog& catalog, const tensor::Tensor& t, tensor::FileCache& files,
                                HashKind kind, const std::function<Result<void>(uint64_t)>& advance) {
  tensor::RegionReader reader(catalog, files);
  tensor::RowMajorBlocks blocks(t, kTensorBlock);
  Hasher hasher(kind);
  std::vector<std::byte> buffer;
  while (auto region = blocks.next()) {
    buffer.resize(tensor::element_count(region->shape).value_or(0) * tensor::item_size(t.dtype));
    CKPT_TRY(reader.read(t, *region, buffer));
    hasher.update(buffer);
    CKPT_TRY(advance(buffer.size()));
  }
  return hasher.finish();
}

}  // namespace ckpt::model
