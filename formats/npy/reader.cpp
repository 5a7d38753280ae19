#include "formats/npy/reader.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "formats/finish.h"
#include "formats/folders.h"
#include "formats/npy/deflate.h"
#include "formats/npy/header.h"
#include "formats/path_keys.h"
#include "formats/zip/zip.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/base/json_reader.h"
#include "lib/tensor/permute.h"
#include "lib/tensor/read.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kExtension = ".npy";
constexpr uint64_t kMaxTypes = 64 << 20;
/// Arrays that have to be decoded are cut so, unless they are compressed.
constexpr uint64_t kSlab = 16 << 20;

bool has_extension(std::string_view name) { return name.size() > kExtension.size() && name.ends_with(kExtension); }
std::string stem(const std::string& name) { return name.substr(0, name.size() - kExtension.size()); }

/// Bytes before the pickle of an array of Python objects, which `beginning` is the beginning of; 0: it is no such
/// array.
uint64_t header_of_objects(ByteSpan beginning) {
  auto length = npy_header_bytes(beginning.first(std::min<size_t>(kNpyPrefix, beginning.size())));
  if (!length || *length > beginning.size()) return 0;
  const std::string_view text = as_text(beginning.first(*length));
  return text.find("|O'") != std::string_view::npos || text.find("'O'") != std::string_view::npos ? *length : 0;
}

/// An array whose bytes are not as they have to be.
struct Encoded {
  tensor::AxisOrder axes;
  uint32_t swap = 1;
  bool deflated = false;
  uint64_t header = 0;   ///< deflated: bytes of content before the elements
  uint32_t crc = 0;      ///< deflated: of the content
};

class NpyDecoder : public tensor::Decoder {
 public:
  void add(uint32_t file, uint64_t offset, Encoded array) { arrays_[{file, offset}] = std::move(array); }
  bool empty() const { return arrays_.empty(); }

  Result<void> decode(const tensor::Tensor& t, const tensor::Shard& shard, ByteSpan encoded,
                      MutableByteSpan out) const override {
    auto found = arrays_.upper_bound({shard.where.file, shard.where.offset});
    if (found == arrays_.begin()) return fail(Code::kBug, t.key, "no decoder");
    const Encoded& array = std::prev(found)->second;
    std::vector<std::byte> other(array.axes.empty() ? 0 : out.size());
    MutableByteSpan elements = array.axes.empty() ? out : MutableByteSpan(other);
    if (array.deflated) {
      std::vector<std::byte> header(array.header);
      CKPT_TRY_ASSIGN(uint32_t crc, inflate_all(encoded, header, elements));
      if (crc != array.crc) return fail(Code::kCorrupt, "", "the CRC differs");
    } else {
      if (encoded.size() != elements.size()) return fail(Code::kCorrupt, "", "a part of the wrong size");
      std::copy(encoded.begin(), encoded.end(), elements.begin());
    }
    if (array.swap > 1) tensor::swap_bytes(elements, array.swap);
    if (!array.axes.empty()) tensor::to_row_major(shard.shape, array.axes, tensor::item_size(t.dtype), elements, out);
    return {};
  }

 private:
  std::map<std::pair<uint32_t, uint64_t>, Encoded> arrays_;  ///< by the first byte of the array
};

class Arrays {
 public:
  Arrays(tensor::Catalog& catalog, DamageLog& damage) : catalog_(catalog), damage_(damage) {}

  /// What numpy's files cannot say: the types of elements that numpy lacks.
  Result<void> read_types() {
    const std::string name(kNpyTypes);
    auto text = read_document(catalog_.root / name, kMaxTypes);
    if (!text && text.error().code == Code::kNotFound) return {};
    if (!text) return std::move(text).error();
    JsonReader reader(*text, {});
    if (reader.peek() == '{') reader.enter();
    else
      return note("", name, Error(Code::kCorrupt, "", "is no JSON object"));
    for (bool first = true; reader.next('{', first); first = false) {
      const std::string key(reader.key());
      auto dtype = reader.peek() == '"' ? tensor::dtype_from_name(reader.string()) : std::nullopt;
      if (!dtype || reader.failed()) return note(key, name, Error(Code::kCorrupt, "", "names no dtype"));
      types_[key] = *dtype;
    }
    reader.finish();
    if (reader.failed()) return note("", name, Error(Code::kCorrupt, "", reader.fault()));
    return {};
  }

  Result<void> add_file(const std::string& name, const std::string& key) {
    const auto index = static_cast<uint32_t>(catalog_.files.size());
    catalog_.files.push_back({name, 0});
    auto fd = catalog_.open_file(index);
    if (!fd) return note(key, name, fd.error());
    CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd->get(), name));
    catalog_.files[index].size = static_cast<uint64_t>(st.st_size);
    const zip::ByteSource source(fd->get(), 0, catalog_.files[index].size, name);
    auto header = read_header(source, 0, source.size(), type_of(key));
    if (!header) return leave_out(key, header.error(), source, {index, 0, source.size()});
    add(key, *header, {index, header->data, source.size() - header->data});
    return {};
  }

  Result<void> add_archive(const std::string& name) {
    catalog_.files.push_back({name, 0});
    CKPT_TRY_ASSIGN(UniqueFd fd, catalog_.open_file(0));
    CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd.get(), name));
    catalog_.files[0].size = static_cast<uint64_t>(st.st_size);
    const zip::ByteSource source(fd.get(), 0, catalog_.files[0].size, name);
    CKPT_TRY_ASSIGN(zip::Archive archive, zip::read_archive(source, true));
    for (const zip::Record& record : archive.records) CKPT_TRY(add_record(source, record));
    return {};
  }

  void finish() {
    if (!decoder_->empty()) catalog_.decoder = decoder_;
  }

 private:
  /// What is no number is left out by name, what is damaged is noted; anything else ends the work.
  Result<void> note(const std::string& key, const std::string& file, Error error) {
    if (error.code == Code::kUnsupported) {
      catalog_.unsupported.push_back({key, error.message});
      return {};
    }
    if (!answers_no(error.code)) return error;
    damage_.add(key, file, std::nullopt, error);
    return {};
  }

  /// Whether a record is as its CRC says; a large one is taken for it.
  static Result<bool> is_whole(const zip::ByteSource& source, const zip::Record& record) {
    constexpr uint64_t kMostChecked = 64 << 20;
    if (record.size > kMostChecked || record.stored > kMostChecked) return true;
    std::vector<std::byte> stored(record.stored), content(record.deflated ? record.size : 0);
    CKPT_TRY(source.read(record.offset, stored));
    if (!record.deflated) return crc32(0, stored) == record.crc;
    auto crc = inflate_all(stored, {}, content);
    return crc && *crc == record.crc;
  }

  /// A header that says something unknown may be a damaged one.
  static Error explain(Error error, const zip::ByteSource& source, const zip::Record& record) {
    if (error.code != Code::kUnsupported) return error;
    auto whole = is_whole(source, record);
    if (!whole) return std::move(whole).error();
    return *whole ? error : Error(Code::kCorrupt, error.subject, "the CRC of " + record.name + " differs");
  }

  /// An array that cannot be read. `whole`: the .npy file in `source`.
  Result<void> leave_out(const std::string& key, const Error& error, const zip::ByteSource& source,
                         tensor::FileRange whole) {
    CKPT_TRY(note(key, source.subject(), error));
    if (error.code != Code::kUnsupported) return {};
    std::vector<std::byte> beginning(std::min(whole.length, kMaxNpyHeader));
    CKPT_TRY(source.read(whole.offset, beginning));
    if (const uint64_t header = header_of_objects(beginning); header > 0) {
      catalog_.unsupported.back().pickle = {whole.file, whole.offset + header, whole.length - header};
    }
    return {};
  }
  Result<void> leave_out_deflated(const std::string& key, const Error& error, const zip::ByteSource& source,
                                  const zip::Record& record) {
    CKPT_TRY(note(key, source.subject(), error));
    if (error.code != Code::kUnsupported) return {};
    CKPT_TRY_ASSIGN(const auto beginning, read_deflated(source, record));
    if (header_of_objects(beginning) > 0) {
      catalog_.unsupported.back().pickle = {0, record.offset, record.stored};
      catalog_.unsupported.back().inflated = record.size;
    }
    return {};
  }

  std::optional<tensor::DType> type_of(const std::string& key) const {
    auto found = types_.find(key);
    return found == types_.end() ? std::nullopt : std::optional(found->second);
  }

  static Result<NpyHeader> read_header(const zip::ByteSource& source, uint64_t begin, uint64_t room,
                                       std::optional<tensor::DType> as = {}) {
    std::vector<std::byte> bytes(std::min(kNpyPrefix, room));
    CKPT_TRY(source.read(begin, bytes));
    CKPT_TRY_ASSIGN(uint64_t length, npy_header_bytes(bytes));
    bytes.resize(std::min(length, room));
    CKPT_TRY(source.read(begin, bytes));
    return parse_npy_header(bytes, as);
  }
  /// The beginning of a deflated record's content.
  static Result<std::vector<std::byte>> read_deflated(const zip::ByteSource& source, const zip::Record& record) {
    std::vector<std::byte> stored(std::min(record.stored, kMaxNpyHeader + 1024)),
        bytes(std::min(record.size, kMaxNpyHeader));
    CKPT_TRY(source.read(record.offset, stored));
    CKPT_TRY_ASSIGN(size_t got, inflate_beginning(stored, bytes));
    bytes.resize(got);
    return bytes;
  }
  static Result<NpyHeader> read_deflated_header(const zip::ByteSource& source, const zip::Record& record) {
    CKPT_TRY_ASSIGN(const auto bytes, read_deflated(source, record));
    return parse_npy_header(bytes);
  }

  Result<void> add_record(const zip::ByteSource& source, const zip::Record& record) {
    if (!has_extension(record.name)) {
      catalog_.unsupported.push_back({record.name, "is no .npy file"});
      return {};
    }
    const std::string key = stem(record.name);
    auto header =
        record.deflated ? read_deflated_header(source, record) : read_header(source, record.offset, record.size);
    if (!header) {
      const Error error = explain(std::move(header).error(), source, record);
      return record.deflated ? leave_out_deflated(key, error, source, record)
                             : leave_out(key, error, source, {0, record.offset, record.size});
    }
    if (record.size < header->data || record.size - header->data < header->data_bytes()) {
      damage_.add(key, source.subject(), record.offset, "the array is cut off");
      return {};
    }
    if (!record.deflated) {
      if (record.size > 0) catalog_.checksums.push_back({{0, record.offset, record.size}, record.crc, record.name});
      add(key, *header, {0, record.offset + header->data, record.size - header->data});
      return {};
    }
    if (record.size - header->data != header->data_bytes()) {
      damage_.add(key, source.subject(), record.offset, "bytes follow the array");
      return {};
    }
    tensor::Tensor& t = add_tensor(key, *header);
    if (header->data_bytes() == 0) return {};
    Encoded encoded = encoding_of(*header);
    encoded.deflated = true;
    encoded.header = header->data;
    encoded.crc = record.crc;
    tensor::Shard shard;
    shard.offset.assign(t.shape.size(), 0);
    shard.shape = t.shape;
    shard.where = {0, record.offset, record.stored};
    shard.encoding = tensor::Encoding::kEncoded;
    t.shards.push_back(std::move(shard));
    decoder_->add(0, record.offset, std::move(encoded));
    return {};
  }

  static Encoded encoding_of(const NpyHeader& header) {
    Encoded out;
    if (header.big_endian) out.swap = tensor::swap_unit(header.dtype);
    for (size_t i = header.shape.size(); header.fortran_order && i-- > 0;) out.axes.push_back(static_cast<uint32_t>(i));
    if (tensor::is_row_major(header.shape, out.axes)) out.axes.clear();
    return out;
  }

  tensor::Tensor& add_tensor(const std::string& key, const NpyHeader& header) {
    if (header.void_type) catalog_.warnings.push_back(key + ": dtype <V2 is taken as bfloat16");
    tensor::Tensor& t = catalog_.tensors.emplace_back();
    t.key = key;
    t.dtype = header.dtype;
    t.shape = header.shape;
    return t;
  }

  /// An array whose elements lie in `where`, which may be longer.
  void add(const std::string& key, const NpyHeader& header, tensor::FileRange where) {
    const std::string& file = catalog_.files[where.file].path;
    if (where.length < header.data_bytes()) {
      damage_.add(
          key, file, where.offset + where.length,
          "the array has " + std::to_string(where.length) + " bytes instead of " + std::to_string(header.data_bytes()));
      return;
    }
    if (where.length > header.data_bytes()) catalog_.warnings.push_back(key + ": bytes follow the array");
    where.length = header.data_bytes();
    tensor::Tensor& t = add_tensor(key, header);
    if (where.length == 0) return;
    Encoded encoded = encoding_of(header);
    if (encoded.axes.empty() && encoded.swap == 1) {
      tensor::Shard shard;
      shard.offset.assign(t.shape.size(), 0);
      shard.shape = t.shape;
      shard.where = where;
      t.shards.push_back(std::move(shard));
      return;
    }
    add_slabs(t, encoded.axes, where);
    decoder_->add(where.file, where.offset, std::move(encoded));
  }

  /// Runs of the file, each a box of the tensor, so that no more than one of them has to be in memory.
  static void add_slabs(tensor::Tensor& t, const tensor::AxisOrder& axes, const tensor::FileRange& where) {
    tensor::Tensor stored;  // by the axes as they run in the file
    stored.dtype = t.dtype;
    stored.shape = t.shape;
    for (size_t i = 0; i < axes.size(); ++i) stored.shape[i] = t.shape[axes[i]];
    tensor::RowMajorBlocks blocks(stored, std::max<uint64_t>(kSlab, t.bytes() >> 16));
    uint64_t at = where.offset;
    while (auto block = blocks.next()) {
      tensor::Shard shard;
      shard.offset = block->offset;
      shard.shape = block->shape;
      for (size_t i = 0; i < axes.size(); ++i) {
        shard.offset[axes[i]] = block->offset[i];
        shard.shape[axes[i]] = block->shape[i];
      }
      shard.where = {where.file, at, *tensor::element_count(block->shape) * tensor::item_size(t.dtype)};
      shard.encoding = tensor::Encoding::kEncoded;
      at += shard.where.length;
      t.shards.push_back(std::move(shard));
    }
  }

  tensor::Catalog& catalog_;
  DamageLog& damage_;
  std::unordered_map<std::string, tensor::DType> types_;
  std::shared_ptr<NpyDecoder> decoder_ = std::make_shared<NpyDecoder>();
};

template <class Fill>
Result<tensor::Catalog> read_with(const fs::path& path, const char* format, const ReadOptions& options, Fill fill) {
  tensor::Catalog catalog;
  catalog.format = format;
  catalog.root = path;
  DamageLog damage;
  Arrays arrays(catalog, damage);
  CKPT_TRY(fill(arrays, catalog));
  arrays.finish();
  return finish_catalog(std::move(catalog), std::move(damage), options);
}

/// The beginning of a regular file, as much as there is of it.
std::string first_bytes(const fs::path& path, size_t count) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return "";
  auto fd = io::open_file(path, O_RDONLY | O_NONBLOCK);
  std::string out(std::min<uint64_t>(count, fs::file_size(path, ec)), '\0');
  if (!fd || ec || !io::pread_exact(fd->get(), {reinterpret_cast<std::byte*>(out.data()), out.size()}, 0, ""))
    return "";
  return out;
}

constexpr int kMaxLook = 64;  ///< folders in folders that are looked at

/// Whether there is a .npy file below the folder: looks at so many entries.
bool holds_arrays(const fs::path& path, int depth, int& budget) {
  std::error_code ec;
  std::vector<fs::path> folders;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end && budget-- > 0; it.increment(ec)) {
    const auto status = it->symlink_status(ec);
    if (it->is_regular_file(ec) && has_extension(it->path().filename().string())) return true;
    if (fs::is_directory(status) && depth > 0) folders.push_back(it->path());
  }
  return std::any_of(folders.begin(), folders.end(),
                     [&](const fs::path& folder) { return holds_arrays(folder, depth - 1, budget); });
}

Result<void> add_folder(Arrays& arrays, tensor::Catalog& catalog) {
  CKPT_TRY(arrays.read_types());
  std::vector<std::pair<std::string, size_t>> folders = {{"", 0}};
  while (!folders.empty()) {
    const auto [folder, depth] = std::move(folders.back());
    folders.pop_back();
    CKPT_TRY_ASSIGN(auto entries, list_folder(catalog.root / folder));
    for (const fs::directory_entry& entry : entries) {
      std::error_code ec;
      const auto status = entry.symlink_status(ec);
      const std::string name = (folder.empty() ? "" : folder + "/") + entry.path().filename().string();
      if (fs::is_directory(status) && depth < kMaxFolderDepth) folders.emplace_back(name, depth + 1);
      else if (fs::is_directory(status)) catalog.unsupported.push_back({name, "a folder nested too deep to be read"});
      const bool link = fs::is_symlink(status), linked_folder = link && entry.is_directory(ec);
      if (linked_folder) catalog.warnings.push_back(name + ": a link to a folder, not followed");
      if ((link || fs::is_regular_file(status)) && !linked_folder && has_extension(name))
        CKPT_TRY(arrays.add_file(name, stem(name)));
    }
  }
  return {};
}

}  // namespace

bool recognises_npy(const fs::path& path) {
  std::error_code ec;
  int budget = 10'000;
  if (!fs::is_directory(path, ec)) return first_bytes(path, 6) == std::string_view("\x93NUMPY", 6);
  // A folder without any array, as ckpt writes it, holds the types alone.
  return holds_arrays(path, kMaxLook, budget) || fs::is_regular_file(path / kNpyTypes, ec);
}

bool recognises_npz(const fs::path& path) {
  // The first member's local header: its name begins at byte 30, its length stands at 26.
  const std::string first = first_bytes(path, 30 + 4096);
  if (first.substr(0, 4) == "PK\x05\x06") return path.extension() == ".npz";  // np.savez without arrays
  if (first.size() < 30 || first.substr(0, 4) != "PK\x03\x04") return false;
  const size_t length = static_cast<unsigned char>(first[26]) + 256U * static_cast<unsigned char>(first[27]);
  return path.extension() == ".npz" || has_extension(std::string_view(first).substr(30, length));
}

Result<tensor::Catalog> read_npy(const fs::path& path, const ReadOptions& options) {
  return read_with(path, "npy", options, [&](Arrays& arrays, tensor::Catalog& catalog) {
    std::error_code ec;
    if (fs::is_directory(path, ec)) return add_folder(arrays, catalog);
    const std::string name = path.filename().string();
    return arrays.add_file(name, has_extension(name) ? stem(name) : name);
  });
}

Result<tensor::Catalog> read_npz(const fs::path& path, const ReadOptions& options) {
  return read_with(path, "npz", options,
                   [&](Arrays& arrays, tensor::Catalog&) { return arrays.add_archive(path.filename().string()); });
}

}  // namespace ckpt::formats
