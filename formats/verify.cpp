#include "formats/verify.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "formats/megatron/metadata_json.h"
#include "formats/pickle/pickle.h"
#include "formats/torch_dist/metadata.h"
#include "formats/torch_save/archive.h"
#include "formats/zip/zip.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/base/worker_pool.h"
#include "lib/tensor/param_groups.h"
#include "lib/tensor/read.h"

namespace ckpt::formats {

namespace {

constexpr uint64_t kBlock = 1 << 20;
constexpr uint64_t kMaxIntegrity = 64 << 20;
constexpr size_t kMaxFindings = 10'000;

/// A stretch of a file that is read once.
struct Piece {
  enum class Kind { kBytes, kZip, kObject, kDecoded } kind = Kind::kBytes;
  tensor::FileRange range;
  const std::string* key = nullptr;
  const tensor::Tensor* tensor = nullptr;  ///< kDecoded
  const tensor::Shard* shard = nullptr;
};

class Verifier {
 public:
  Verifier(const tensor::Catalog& catalog, bool strict, ProgressSink& progress, const Cancel& cancel)
      : catalog_(catalog), strict_(strict), progress_(progress), cancel_(cancel), files_(catalog) {}

  Result<VerifyReport> run() {
    for (const tensor::Finding& finding : catalog_.damage) note(finding);
    for (const std::string& text : catalog_.warnings) note({"", "", std::nullopt, text, true});
    for (const std::string& text : catalog_.unsupported) note({"", "", std::nullopt, text + ": not checked", true});
    check_object_grids();
    for (tensor::Finding& finding : tensor::check_params(tensor::group_params(catalog_))) {
      finding.warning = !strict_;
      note(std::move(finding));
    }
    CKPT_TRY_ASSIGN(auto hashes, read_integrity());
    std::vector<Piece> pieces = collect();
    uint64_t total = 0;
    for (const Piece& piece : pieces) total += piece.range.length;
    for (const auto& hash : hashes) total += file_size(hash.first);
    progress_.begin("verify", total);
    WorkerPool pool;
    for (const Piece& piece : pieces) {
      if (!pool.submit([this, &piece] { return check(piece); })) break;
    }
    for (const auto& hash : hashes) {
      if (!pool.submit([this, &hash] { return check_hash(hash.first, hash.second); })) break;
    }
    CKPT_TRY(pool.finish());
    report_.bytes_read = bytes_;
    report_.records = records_;
    auto place = [](const tensor::Finding& f) { return std::tuple(f.warning, f.file, f.offset.value_or(0), f.key, f.message); };
    std::sort(report_.findings.begin(), report_.findings.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
    return std::move(report_);
  }

 private:
  const std::string& path(const tensor::FileRange& range) const { return catalog_.files[range.file].path; }
  uint64_t file_size(const std::string& name) const {
    for (const tensor::SourceFile& file : catalog_.files) {
      if (file.path == name) return file.size;
    }
    return 0;
  }

  void note(tensor::Finding finding) {
    std::lock_guard lock(mutex_);
    if (report_.findings.size() < kMaxFindings) report_.findings.push_back(std::move(finding));
  }
  /// Damage becomes a finding; anything else (no permission, an I/O error, a stop) ends the work.
  Result<void> note(const Piece& piece, const Error& error) {
    if (error.code != Code::kAnswerNo && error.code != Code::kUnsupported && error.code != Code::kNotFound) return error;
    Error bare = error;
    if (bare.subject == path(piece.range)) bare.subject.clear();
    note({*piece.key, path(piece.range), piece.range.offset, bare.text(), false});
    return {};
  }
  Result<void> advance(uint64_t bytes) {
    bytes_ += bytes;
    progress_.advance(bytes);
    return cancel_.check();
  }

  std::vector<Piece> collect() const {
    std::vector<Piece> out;
    static const std::string kCommon = "common state";
    for (const tensor::Tensor& t : catalog_.tensors) {
      for (const tensor::Shard& shard : t.shards) {
        if (shard.where.length == 0 && shard.item.length == 0) continue;
        // A torch.save file is checked as a whole, below.
        if (catalog_.format == "torch_save" && shard.encoding == tensor::Encoding::kRaw) continue;
        if (shard.encoding == tensor::Encoding::kEncoded) out.push_back({Piece::Kind::kDecoded, shard.where, &t.key, &t, &shard});
        else if (shard.item.length != 0) out.push_back({Piece::Kind::kZip, shard.item, &t.key, nullptr, nullptr});
        else out.push_back({Piece::Kind::kBytes, shard.where, &t.key, nullptr, nullptr});
      }
    }
    for (const tensor::Object& object : catalog_.objects) {
      if (object.inline_bytes.empty()) out.push_back({Piece::Kind::kObject, object.where, &object.key, nullptr, nullptr});
    }
    if (catalog_.common) out.push_back({Piece::Kind::kObject, *catalog_.common, &kCommon, nullptr, nullptr});
    // What reaches past its file was noted by the reader. Several shards may lie in one item.
    std::erase_if(out, [&](const Piece& p) {
      return p.range.file >= catalog_.files.size() || p.range.length == 0 || p.range.offset + p.range.length > catalog_.files[p.range.file].size;
    });
    auto place = [](const Piece& p) { return std::tuple(p.range.file, p.range.offset, p.range.length, p.kind); };
    std::stable_sort(out.begin(), out.end(), [&](const Piece& a, const Piece& b) { return place(a) < place(b); });
    auto same = [&](const Piece& a, const Piece& b) { return a.kind != Piece::Kind::kDecoded && place(a) == place(b); };
    out.erase(std::unique(out.begin(), out.end(), same), out.end());
    return out;
  }

  Result<void> check(const Piece& piece) {
    CKPT_TRY(cancel_.check());
    switch (piece.kind) {
      case Piece::Kind::kBytes: return check_bytes(piece);
      case Piece::Kind::kDecoded: return check_decoded(piece);
      case Piece::Kind::kZip: case Piece::Kind::kObject: return check_zip(piece);
    }
    return {};
  }

  Result<void> check_bytes(const Piece& piece) {
    auto file = files_.open(piece.range.file);
    if (!file) return note(piece, file.error());
    std::vector<std::byte> block(std::min(kBlock, piece.range.length));
    for (uint64_t done = 0; done < piece.range.length;) {
      auto part = MutableByteSpan(block).first(std::min<uint64_t>(block.size(), piece.range.length - done));
      auto read = io::pread_exact((*file)->get(), part, piece.range.offset + done, path(piece.range));
      if (!read) return note(piece, read.error());
      done += part.size();
      CKPT_TRY(advance(part.size()));
    }
    return {};
  }

  Result<void> check_decoded(const Piece& piece) {
    tensor::RegionReader reader(catalog_, files_);
    std::vector<std::byte> out(item_size(piece.tensor->dtype));
    // The decoder makes the whole shard or fails: asking for one element is enough.
    auto read = reader.read(*piece.tensor, {piece.shard->offset, tensor::Shape(piece.shard->shape.size(), 1)}, out);
    if (!read) return note(piece, read.error());
    return advance(piece.range.length);
  }

  Result<void> check_zip(const Piece& piece) {
    auto file = files_.open(piece.range.file);
    if (!file) return note(piece, file.error());
    zip::ByteSource source((*file)->get(), piece.range.offset, piece.range.length, path(piece.range));
    auto archive = zip::read_archive(source);
    if (!archive) {
      // A tensor item that is no zip was noted by the reader; an object may be a torch.save file from before 1.6.
      if (piece.kind == Piece::Kind::kObject) CKPT_TRY(check_object(piece, source));
      return check_bytes(piece);
    }
    uint64_t read = 0;
    for (const zip::Record& record : archive->records) {
      auto crc = zip::record_crc(source, record, [&](uint64_t bytes) { return advance(bytes); });
      if (!crc && crc.error().code == Code::kInterrupted) return std::move(crc).error();
      if (!crc) return note(piece, crc.error());
      ++records_;
      if (*crc != record.crc) {
        note({*piece.key, path(piece.range), piece.range.offset + record.offset,
              "the CRC of record " + record.name + " differs", !strict_});
      }
      read += record.size;
    }
    if (piece.kind == Piece::Kind::kObject) CKPT_TRY(check_object(piece, source));
    return advance(piece.range.length - std::min(read, piece.range.length));
  }

  /// An object is opened by its loader with plain pickle: names that no checkpoint needs deserve a word.
  Result<void> check_object(const Piece& piece, const zip::ByteSource& source) {
    auto archive = read_torch_file(source);
    if (!archive) return note(piece, archive.error());
    auto known = pickle::refuse_unknown_globals(archive->graph);
    if (known) return {};
    std::string names;
    for (size_t i = 0; i < std::min<size_t>(known.error().causes.size(), 8); ++i) names += (i == 0 ? "" : ", ") + known.error().causes[i];
    note({*piece.key, path(piece.range), piece.range.offset, "loading it with pickle would import " + names, true});
    return {};
  }

  /// Every place of a ShardedObject's grid is there once (twins were refused when the catalog was made).
  void check_object_grids() {
    if (catalog_.format != "zarr" && catalog_.format != "torch_dist") return;
    std::map<std::pair<std::string, std::vector<uint64_t>>, uint64_t> groups;
    for (const tensor::Object& object : catalog_.objects) {
      size_t slash = object.key.rfind('/');
      auto place = slash == std::string::npos ? std::nullopt : parse_object_place(std::string_view(object.key).substr(slash + 1));
      if (!place || place->offset.size() != place->shape.size()) {
        note({object.key, "", std::nullopt, "its name says no place (Megatron wants <key>/shard_<offset>_<shape>)", false});
        continue;
      }
      ++groups[{object.key.substr(0, slash), place->shape}];
    }
    for (const auto& group : groups) {
      auto wanted = tensor::element_count(group.first.second);
      if (wanted != group.second) {
        note({group.first.first, "", std::nullopt, std::to_string(group.second) + " of " +
              (wanted ? std::to_string(*wanted) : "too many") + " shards of the object are there", false});
      }
    }
  }

  /// integrity.json of Megatron 0.19: file name -> SHA-256 (formats.md 1.8).
  Result<std::map<std::string, std::string>> read_integrity() {
    std::map<std::string, std::string> out;
    constexpr const char* kName = "integrity.json";
    if (catalog_.format != "zarr" && catalog_.format != "torch_dist") return out;
    auto text = io::read_file(catalog_.root / kName, kMaxIntegrity);
    if (!text && text.error().code == Code::kNotFound) return out;
    if (!text) return std::move(text).error();
    auto doc = nlohmann::json::parse(*text, nullptr, false);
    if (!doc.is_object() || !doc.contains("files") || !doc["files"].is_object()) {
      note({"", kName, std::nullopt, "is not what Megatron writes", false});
    } else if (!doc.contains("algorithm") || doc["algorithm"] != "sha256") {
      note({"", kName, std::nullopt, "names another algorithm than sha256", false});
    } else {
      for (const auto& item : doc["files"].items()) {
        if (!item.value().is_string() || !is_safe_relative_path(item.key())) note({"", kName, std::nullopt, "has a malformed entry", false});
        else out[item.key()] = item.value().get<std::string>();
      }
    }
    return out;
  }

  Result<void> check_hash(const std::string& name, const std::string& wanted) {
    tensor::Catalog one;
    one.root = catalog_.root;
    one.files = {{name, 0}};
    auto fd = one.open_file(0);
    if (!fd) {
      if (fd.error().code != Code::kNotFound && fd.error().code != Code::kAnswerNo) return std::move(fd).error();
      note({"", name, std::nullopt, "is listed in integrity.json and cannot be opened", false});
      return {};
    }
    CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd->get(), name));
    Sha256 sha;
    std::vector<std::byte> block(kBlock);
    const auto size = static_cast<uint64_t>(st.st_size);
    for (uint64_t done = 0; done < size;) {
      auto part = MutableByteSpan(block).first(std::min<uint64_t>(block.size(), size - done));
      CKPT_TRY(io::pread_exact(fd->get(), part, done, name));
      sha.update(part);
      done += part.size();
      CKPT_TRY(advance(part.size()));
    }
    std::lock_guard lock(mutex_);
    ++report_.hashes;
    if (sha.finish_hex() != wanted) report_.findings.push_back({"", name, std::nullopt, "its SHA-256 is not the one in integrity.json", false});
    return {};
  }

  const tensor::Catalog& catalog_;
  bool strict_;
  ProgressSink& progress_;
  const Cancel& cancel_;
  tensor::FileCache files_;
  std::mutex mutex_;
  VerifyReport report_;
  std::atomic<uint64_t> bytes_{0}, records_{0};
};

}  // namespace

Result<VerifyReport> verify(const tensor::Catalog& catalog, bool strict, ProgressSink& progress, const Cancel& cancel) {
  return Verifier(catalog, strict, progress, cancel).run();
}

}  // namespace ckpt::formats
