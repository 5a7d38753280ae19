#include "lib/model/verify/verify.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "formats/npy/deflate.h"
#include "formats/npy/header.h"
#include "formats/torch_save/archive.h"
#include "lib/model/verify/compare.h"
#include "lib/model/verify/folder.h"
#include "lib/model/verify/integrity.h"
#include "lib/model/verify/pickles.h"
#include "lib/model/verify/structure.h"
#include "formats/zip/zip.h"
#include "lib/base/file_stream.h"
#include "lib/base/io.h"
#include "lib/base/worker_pool.h"
#include "lib/model/param_groups.h"
#include "lib/tensor/checksums.h"
#include "lib/tensor/selection.h"

namespace ckpt::model {

namespace {

constexpr size_t kMaxFindings = 10'000;
constexpr const char* kMetadata = ".metadata";

/// An extent of a file that is read once.
struct FileExtent {
  enum class Kind { kBytes, kZip, kObject, kDecoded, kRecord } kind = Kind::kBytes;
  tensor::FileRange range;
  const std::string* key = nullptr;
  const tensor::Tensor* tensor = nullptr;  ///< kDecoded
  const tensor::Shard* shard = nullptr;
  const tensor::Checksum* sum = nullptr;   ///< kRecord
};

/// What one worker does in one go. `index` is into the list of its kind.
struct Unit {
  enum class Kind { kPiece, kHash, kTensorHash, kCompare, kMetadata, kLeftOut } kind;
  size_t index;
  uint64_t bytes;
};

class Verifier {
 public:
  Verifier(const tensor::Catalog& catalog, const VerifyOptions& options, ProgressSink& progress, const Cancel& cancel)
      : catalog_(catalog),
        options_(options),
        progress_(progress),
        cancel_(cancel),
        files_(catalog),
        scanner_(options.strict, options.trust_pickles, [this](tensor::Finding finding) { note(std::move(finding)); }) {
  }

  Result<VerifyReport> run() {
    auto take = [this](tensor::Finding finding) { note(std::move(finding)); };
    for (const tensor::Finding& finding : catalog_.damage) {
      if (finding.key.empty() || wanted(finding.key)) note(finding);
    }
    if (options_.objects) check_object_grids(catalog_, options_.wanted, take);
    if (!options_.before_conversion) note_oddities();
    CKPT_TRY(check_folder(catalog_, [&](tensor::Finding finding) { note_odd(std::move(finding)); }));
    if (options_.hashes)
      CKPT_TRY(hashes_.collect(catalog_, options_.tensor_hashes ? nullptr : options_.manifest, take));
    if (options_.against != nullptr) {
      comparison_.emplace(catalog_, *options_.against, options_.skip_unreadable, take);
      comparison_->pair_up();
      report_.compared = comparison_->tensors();
    }
    CKPT_TRY_ASSIGN(const unsigned workers, count_workers());
    collect_pieces();
    collect_tensor_hashes();
    CKPT_TRY(work(collect_units(), workers));
    CKPT_TRY(cancel_.check());  // a pickle that was not walked to its end for that is not damaged
    if (comparison_) comparison_->finish();
    return finish();
  }

 private:
  bool wanted(const std::string& key) const { return !options_.wanted || options_.wanted(key); }

  void note_odd(tensor::Finding finding) {
    finding.warning = finding.warning && !options_.strict;
    if (!finding.warning || !options_.before_conversion) note(std::move(finding));
  }
  void note_oddities() {
    for (const std::string& text : catalog_.warnings) note({"", "", std::nullopt, text, true});
    for (const tensor::Unreadable& entry : catalog_.unsupported) {
      if (!wanted(entry.key)) continue;
      note({entry.key, "", std::nullopt, entry.why + ": not checked", true});
      ++report_.unreadable;
    }
    check_item_gaps(catalog_, files_, [&](tensor::Finding finding) { note_odd(std::move(finding)); });
    const ParamGroups groups = group_params(catalog_);
    for (auto& findings : {check_params(groups), check_kinds(groups)}) {
      for (tensor::Finding finding : findings) {
        finding.warning = !options_.optimizer;
        note(std::move(finding));
      }
    }
  }

  /// As many as may hold a decoded shard at once.
  Result<unsigned> count_workers() const {
    tensor::DecodeLimit limit(options_.max_memory);
    if (options_.before_conversion) return limit.workers(0);
    std::vector<const tensor::Catalog*> catalogs = {&catalog_};
    if (options_.against != nullptr) catalogs.push_back(options_.against);
    for (const tensor::Catalog* catalog : catalogs) {
      for (const tensor::Tensor& t : catalog->tensors) CKPT_TRY(limit.add(t, static_cast<unsigned>(catalogs.size())));
    }
    return limit.workers(0);
  }

  const std::string& path(const tensor::FileRange& range) const { return catalog_.files[range.file].path; }

  void note(tensor::Finding finding) {
    std::lock_guard lock(mutex_);
    if (report_.findings.size() < kMaxFindings) report_.findings.push_back(std::move(finding));
  }
  /// Damage becomes a finding; anything else (no permission, an I/O error, a stop) ends the work.
  Result<void> note(const FileExtent& piece, const Error& error) {
    if (!answers_no(error.code) && error.code != Code::kUnsupported && error.code != Code::kNotFound) return error;
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

  // --- what there is to do
  // -----------------------------------------------------------------------------------------------
  void collect_tensor_pieces() {
    const bool npz = catalog_.format == "npz";
    for (const tensor::Tensor& t : catalog_.tensors) {
      for (const tensor::Shard& shard : t.shards) {
        if (shard.where.length == 0 && shard.item.length == 0) continue;
        // A torch.save file is checked as a whole, below.
        if ((npz || catalog_.format == "torch_save") && shard.encoding == tensor::Encoding::kRaw) continue;
        if (shard.encoding == tensor::Encoding::kEncoded)
          pieces_.push_back({FileExtent::Kind::kDecoded, shard.where, &t.key, &t, &shard, nullptr});
        else if (shard.item.length != 0)
          pieces_.push_back({FileExtent::Kind::kZip, shard.item, &t.key, nullptr, nullptr, nullptr});
        else
          pieces_.push_back({FileExtent::Kind::kBytes, shard.where, &t.key, nullptr, nullptr, nullptr});
      }
    }
    for (const tensor::Checksum& sum : catalog_.checksums) {
      if (npz) pieces_.push_back({FileExtent::Kind::kRecord, sum.where, &sum.record, nullptr, nullptr, &sum});
    }
  }

  void collect_pieces() {
    static const std::string kCommon = "common state";
    if (!options_.before_conversion) collect_tensor_pieces();
    for (const tensor::Object& object : catalog_.objects) {
      if (object.inline_bytes.empty() && options_.objects && wanted(object.key))
        pieces_.push_back({FileExtent::Kind::kObject, object.where, &object.key, nullptr, nullptr, nullptr});
    }
    if (catalog_.common && options_.objects)
      pieces_.push_back({FileExtent::Kind::kObject, *catalog_.common, &kCommon, nullptr, nullptr, nullptr});
    // What reaches past its file was noted by the reader. Where a file's hash is compared its bytes need no second
    // look; what a pickle in it would import is not the hash's business.
    std::erase_if(pieces_, [&](const FileExtent& p) {
      if (p.range.file >= catalog_.files.size() || p.range.length == 0) return true;
      const uint64_t size = catalog_.files[p.range.file].size;
      if (p.range.offset > size || p.range.length > size - p.range.offset) return true;
      return p.kind != FileExtent::Kind::kObject && !options_.strict && hashes_.covers(path(p.range));
    });
    auto place = [](const FileExtent& p) { return std::tuple(p.range.file, p.range.offset, p.range.length, p.kind); };
    std::stable_sort(pieces_.begin(), pieces_.end(),
                     [&](const FileExtent& a, const FileExtent& b) { return place(a) < place(b); });
    // Several shards may lie in one item.
    auto same = [&](const FileExtent& a, const FileExtent& b) {
      return a.kind != FileExtent::Kind::kDecoded && place(a) == place(b);
    };
    pieces_.erase(std::unique(pieces_.begin(), pieces_.end(), same), pieces_.end());
  }

  void collect_tensor_hashes() {
    if (!options_.tensor_hashes || options_.manifest == nullptr) return;
    const auto& wanted = options_.manifest->tensors;
    for (const tensor::Tensor& t : catalog_.tensors) {
      auto found = wanted.find(t.key);
      if (found == wanted.end()) {
        note({t.key, "", std::nullopt, "the manifest has no hash of it", true});
      } else if (found->second.dtype != tensor::dtype_name(t.dtype) || found->second.shape != t.shape) {
        note({t.key, "", std::nullopt, "has another dtype or shape than in the manifest", false});
      } else {
        tensor_hashes_.push_back({&t, &found->second});
      }
    }
    auto less = [](const tensor::Tensor& t, const std::string& key) { return t.key < key; };
    for (const auto& [key, hash] : wanted) {
      auto found = std::lower_bound(catalog_.tensors.begin(), catalog_.tensors.end(), key, less);
      if (found == catalog_.tensors.end() || found->key != key)
        note({key, "", std::nullopt, "is in the manifest, but not in the checkpoint", false});
    }
  }

  std::vector<Unit> collect_units() const {
    std::vector<Unit> all, out;
    // Whole files that cannot be cut come first: at the end one of them would keep a single core busy.
    for (size_t i = 0; i < hashes_.size(); ++i) all.push_back({Unit::Kind::kHash, i, hashes_.bytes(i)});
    for (size_t i = 0; i < tensor_hashes_.size(); ++i)
      all.push_back({Unit::Kind::kTensorHash, i, tensor_hashes_[i].tensor->bytes()});
    if ((catalog_.format == "torch_dist" || catalog_.format == "dcp") && !options_.before_conversion)
      all.push_back({Unit::Kind::kMetadata, 0, 0});
    for (size_t i = 0; !options_.before_conversion && i < catalog_.unsupported.size(); ++i) {
      const tensor::Unreadable& entry = catalog_.unsupported[i];
      if (entry.pickle.length > 0 && wanted(entry.key)) all.push_back({Unit::Kind::kLeftOut, i, entry.pickle.length});
    }
    for (size_t i = 0; i < pieces_.size(); ++i) all.push_back({Unit::Kind::kPiece, i, pieces_[i].range.length});
    for (size_t i = 0; comparison_ && i < comparison_->units().size(); ++i)
      all.push_back({Unit::Kind::kCompare, i, comparison_->units()[i].bytes});
    std::vector<uint64_t> sizes;
    for (const Unit& unit : all) sizes.push_back(unit.bytes);
    for (size_t i : select_units(sizes, options_.selection)) out.push_back(all[i]);
    return out;
  }

  // --- the work
  // ------------------------------------------------------------------------------------------------------------
  Result<void> work(const std::vector<Unit>& units, unsigned workers) {
    uint64_t total = 0;
    for (const Unit& unit : units) total += unit.bytes;
    progress_.begin("verify", total);
    WorkerPool pool(workers);
    for (const Unit& unit : units) {
      if (!pool.submit([this, &unit] { return check(unit); })) break;
    }
    return pool.finish();
  }

  Result<void> check(const Unit& unit) {
    CKPT_TRY(cancel_.check());
    auto count = [this](uint64_t bytes) { return advance(bytes); };
    switch (unit.kind) {
      case Unit::Kind::kPiece: return check(pieces_[unit.index]);
      case Unit::Kind::kHash:
        return hashes_.check(
            unit.index, [this](tensor::Finding finding) { note(std::move(finding)); }, count);
      case Unit::Kind::kTensorHash: return check_tensor_hash(tensor_hashes_[unit.index]);
      case Unit::Kind::kCompare: return comparison_->compare(comparison_->units()[unit.index], count);
      case Unit::Kind::kMetadata: return scan_metadata();
      case Unit::Kind::kLeftOut: return scan_left_out(catalog_.unsupported[unit.index]);
    }
    return {};
  }

  Result<void> check(const FileExtent& piece) {
    switch (piece.kind) {
      case FileExtent::Kind::kBytes:
        return check_bytes(piece);
      case FileExtent::Kind::kDecoded:
        return check_decoded(piece);
      case FileExtent::Kind::kRecord:
        return check_record(piece);
      case FileExtent::Kind::kZip:
      case FileExtent::Kind::kObject:
        return check_zip(piece);
    }
    return {};
  }

  Result<void> check_bytes(const FileExtent& piece) {
    auto file = files_.open(piece.range.file);
    if (!file) return note(piece, file.error());
    FileStream stream;
    auto read = stream.read((*file)->get(), piece.range.offset, piece.range.length, path(piece.range),
                            [this](ByteSpan part) { return advance(part.size()); });
    return read ? read : note(piece, read.error());
  }

  Result<void> check_decoded(const FileExtent& piece) {
    tensor::RegionReader reader(catalog_, files_);
    std::vector<std::byte> out(item_size(piece.tensor->dtype));
    // The decoder makes the whole shard or fails: asking for one element is enough.
    auto read = reader.read(*piece.tensor, {piece.shard->offset, tensor::Shape(piece.shard->shape.size(), 1)}, out);
    if (!read) return note(piece, read.error());
    return advance(piece.range.length);
  }

  Result<void> check_zip(const FileExtent& piece) {
    auto file = files_.open(piece.range.file);
    if (!file) return note(piece, file.error());
    zip::ByteSource source((*file)->get(), piece.range.offset, piece.range.length, path(piece.range));
    auto archive = zip::read_archive(source);
    if (piece.kind == FileExtent::Kind::kObject) CKPT_TRY(check_object(piece, source));
    if (piece.kind == FileExtent::Kind::kObject && !options_.strict && hashes_.covers(path(piece.range)))
      return advance(piece.range.length);
    // A tensor item that is no zip was noted by the reader; an object may be a torch.save file from before 1.6.
    if (!archive) return check_bytes(piece);
    if (!options_.before_conversion) {
      auto oddities = zip::find_oddities(source, *archive);
      if (!oddities) return note(piece, oddities.error());
      for (const zip::Oddity& odd : *oddities)
        note({*piece.key, path(piece.range), piece.range.offset + odd.offset, odd.message, !options_.strict});
    }
    return check_crcs(piece, **file, *archive);
  }

  void compare_crc(const FileExtent& piece, const tensor::Checksum& sum, uint32_t crc) {
    ++records_;
    if (crc == sum.crc) return;
    if (sum.crc == 0) ++not_computed_;
    else note({*piece.key, path(piece.range), sum.where.offset, sum.differs(), false});
  }

  Result<void> check_record(const FileExtent& piece) {
    auto file = files_.open(piece.range.file);
    if (!file) return note(piece, file.error());
    FileStream stream;
    uint32_t crc = 0;
    auto done =
        stream.read((*file)->get(), piece.range.offset, piece.range.length, path(piece.range), [&](ByteSpan part) {
          crc = crc32(crc, part);
          return advance(part.size());
        });
    if (!done) return note(piece, done.error());
    compare_crc(piece, *piece.sum, crc);
    return {};
  }

  Result<void> check_crcs(const FileExtent& piece, const UniqueFd& file, const zip::Archive& archive) {
    FileStream stream;
    uint64_t read = 0;
    // Of a torch.save file: what the conversion itself compares.
    const bool copied = options_.before_conversion && catalog_.format == "torch_save";
    for (const zip::Record& record : archive.records) {
      if (copied && record.name.rfind(archive.top + "/data/", 0) == 0) continue;
      uint32_t crc = 0;
      auto done = stream.read(file.get(), piece.range.offset + record.offset, record.size, path(piece.range),
                              [&](ByteSpan part) {
                                crc = crc32(crc, part);
                                return advance(part.size());
                              });
      if (!done) return note(piece, done.error());
      compare_crc(piece, {{piece.range.file, piece.range.offset + record.offset, record.size}, record.crc, record.name},
                  crc);
      read += record.size;
    }
    return advance(piece.range.length - std::min(read, piece.range.length));
  }

  /// An object is opened by its loader with plain pickle.
  Result<void> check_object(const FileExtent& piece, const zip::ByteSource& source) {
    if (catalog_.format != "torch_save") {  // that was read when it was opened
      auto archive = formats::read_torch_file(source);
      if (!archive) CKPT_TRY(note(piece, archive.error()));
    }
    auto scanned = scanner_.scan_file(source, *piece.key, path(piece.range), piece.range.offset);
    return scanned ? scanned : note(piece, scanned.error());
  }

  Result<void> scan_metadata() {
    auto bytes = io::read_file(catalog_.root / kMetadata, formats::ReadOptions().max_metadata_bytes);
    if (!bytes) return {};  // it was read once: then it is gone, and the next verify says so
    scanner_.scan(as_bytes(*bytes), "", kMetadata, 0, true);
    return {};
  }

  /// An array of Python objects: its loader opens a pickle.
  Result<void> scan_left_out(const tensor::Unreadable& entry) {
    constexpr uint64_t kMaxPickle = 256 << 20;
    const std::string& name = path(entry.pickle);
    auto cannot = [&](const std::string& why) {
      note({entry.key, name, entry.pickle.offset, "the pickle cannot be scanned: " + why, false});
    };
    if (std::max(entry.pickle.length, entry.inflated) > kMaxPickle)
      return cannot("it is larger than 256 MiB"), Result<void>();
    CKPT_TRY_ASSIGN(auto file, files_.open(entry.pickle.file));
    std::vector<std::byte> bytes(entry.pickle.length);
    CKPT_TRY(io::pread_exact(file->get(), bytes, entry.pickle.offset, name));
    ByteSpan pickle = bytes;
    std::vector<std::byte> content(entry.inflated);
    if (entry.inflated > 0) {
      auto inflated = formats::inflate_all(bytes, content, {});
      auto header = inflated ? formats::npy_header_bytes(
                                   ByteSpan(content).first(std::min<size_t>(formats::kNpyPrefix, content.size())))
                             : Result<uint64_t>(inflated.error());
      if (!header || *header > content.size())
        return cannot(header ? "it is cut off" : header.error().message), Result<void>();
      pickle = ByteSpan(content).subspan(*header);
    }
    if (!scanner_.scan_row(pickle, entry.key, name, entry.pickle.offset)) cannot("it is none");
    return advance(entry.pickle.length);
  }

  struct TensorHash {
    const tensor::Tensor* tensor;
    const Manifest::TensorHash* wanted;
  };
  Result<void> check_tensor_hash(const TensorHash& job) {
    const std::string& key = job.tensor->key;
    auto hash = hash_tensor(catalog_, *job.tensor, files_, options_.manifest->hash,
                            [this](uint64_t bytes) { return advance(bytes); });
    if (!hash) {
      if (!answers_no(hash.error().code) && hash.error().code != Code::kNotFound) return std::move(hash).error();
      note({key, "", std::nullopt, hash.error().text(), false});
    } else if (*hash != job.wanted->hash) {
      note({key, "", std::nullopt, "its hash is not the one in " + options_.manifest->name, false});
    }
    std::lock_guard lock(mutex_);
    ++report_.hashes;
    return {};
  }

  VerifyReport finish() {
    report_.bytes_read = bytes_;
    report_.records = records_;
    report_.hashes += hashes_.checked();
    report_.imports = scanner_.take();
    if (not_computed_ > 0) {
      tensor::Finding finding = tensor::not_computed(not_computed_);
      finding.warning = !options_.strict;
      report_.findings.push_back(std::move(finding));
    }
    auto place = [](const tensor::Finding& f) {
      return std::tuple(f.warning, f.file, f.offset.value_or(0), f.key, f.message);
    };
    std::sort(report_.findings.begin(), report_.findings.end(),
              [&](const auto& a, const auto& b) { return place(a) < place(b); });
    return std::move(report_);
  }

  const tensor::Catalog& catalog_;
  const VerifyOptions& options_;
  ProgressSink& progress_;
  const Cancel& cancel_;
  tensor::FileCache files_;
  PickleScanner scanner_;
  FileHashes hashes_;
  std::optional<Comparison> comparison_;
  std::vector<FileExtent> pieces_;
  std::vector<TensorHash> tensor_hashes_;
  std::mutex mutex_;
  VerifyReport report_;
  std::atomic<uint64_t> bytes_{0}, records_{0}, not_computed_{0};
};

}  // namespace

Result<VerifyReport> verify(const tensor::Catalog& catalog, const VerifyOptions& options, ProgressSink& progress,
                            const Cancel& cancel) {
  return Verifier(catalog, options, progress, cancel).run();
}

}  // namespace ckpt::model
