#include "formats/torch_dist/items.h"

#include <sys/stat.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_set>

#include "formats/torch_dist/safetensors_items.h"
#include "formats/torch_save/archive.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/base/worker_pool.h"
#include "lib/tensor/read.h"

namespace ckpt::formats {

namespace {

constexpr uint64_t kMaxObject = 256 << 20;
constexpr uint64_t kZipRoom = 1 << 20;  ///< what a zip around one tensor may be longer than the tensor

struct Item {
  tensor::FileRange range;
  const std::string* key;
};

std::string shape_text(const tensor::Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

/// A zstd stream of unknown length, refused past `limit`.
Result<std::vector<std::byte>> decompress(ByteSpan encoded, uint64_t limit) {
  std::vector<std::byte> out(std::min<uint64_t>(limit, std::max<uint64_t>(encoded.size() * 4, 64 << 10)));
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(), &ZSTD_freeDStream);
  if (!stream) return fail(Code::kNoRoom, "", "cannot start zstd");
  ZSTD_inBuffer in{encoded.data(), encoded.size(), 0};
  ZSTD_outBuffer made{out.data(), out.size(), 0};
  for (;;) {
    size_t state = ZSTD_decompressStream(stream.get(), &made, &in);
    if (ZSTD_isError(state) != 0)
      return fail(Code::kCorrupt, "", std::string("damaged zstd data: ") + ZSTD_getErrorName(state));
    if (state == 0 && in.pos == in.size) break;
    if (made.pos == made.size) {
      if (made.size >= limit) return fail(Code::kCorrupt, "", "the zstd data is larger than the item may be");
      out.resize(std::min<uint64_t>(limit, out.size() * 2));
      made.dst = out.data(), made.size = out.size();
    } else if (in.pos == in.size) {
      return fail(Code::kCorrupt, "", "the zstd data is cut off");
    }
  }
  out.resize(made.pos);
  return out;
}

/// The item says what the chunk says.
Result<void> compare(const TensorItem& item, const tensor::Tensor& t, const tensor::Shard& shard) {
  if (item.shape != shard.shape) {
    return fail(
        Code::kCorrupt, "",
        "the item holds a tensor of shape " + shape_text(item.shape) + " instead of " + shape_text(shard.shape));
  }
  if (item.dtype.dtype != t.dtype) {
    return fail(
        Code::kCorrupt, "",
        "the item holds " + std::string(item.dtype.name) + " instead of " + std::string(tensor::dtype_name(t.dtype)));
  }
  return {};
}

/// Items that are zstd streams, or tensors that are not row-major: `encoded` is the whole item.
class ItemDecoder : public tensor::Decoder {
 public:
  Result<void> decode(const tensor::Tensor& t, const tensor::Shard& shard, ByteSpan encoded,
                      MutableByteSpan out) const override {
    std::vector<std::byte> plain;
    if (as_text(encoded).substr(0, 2) != "PK") {
      CKPT_TRY_ASSIGN(plain, decompress(encoded, out.size() + kZipRoom));
      encoded = plain;
    }
    CKPT_TRY_ASSIGN(TensorItem item, read_tensor_item(zip::ByteSource(encoded, "")));
    CKPT_TRY(compare(item, t, shard));
    const ByteSpan storage = encoded.subspan(item.storage.where.offset, item.storage.where.length);
    if (item.storage.crc != 0 && crc32(0, storage) != item.storage.crc)
      return fail(Code::kCorrupt, "", item.storage.differs());
    if (item.layout) return lay_out(*item.layout, t.dtype, shard.shape, encoded.subspan(item.offset, item.length), out);
    std::memcpy(out.data(), encoded.data() + item.offset, out.size());
    return {};
  }
};

/// One worker's share of the tensors.
class Locator {
 public:
  Locator(tensor::FileCache& files, SafetensorsItems& safetensors, tensor::Catalog& catalog, DamageLog& damage,
          std::mutex& mutex)
      : files_(files), safetensors_(safetensors), catalog_(catalog), damage_(damage), mutex_(mutex) {}
  ~Locator() {
    std::lock_guard lock(mutex_);
    std::move(checksums_.begin(), checksums_.end(), std::back_inserter(catalog_.checksums));
  }
  Locator(const Locator&) = delete;
  Locator& operator=(const Locator&) = delete;

  Result<void> locate(tensor::Tensor& t) {
    for (tensor::Shard& shard : t.shards) {
      // What ends past its file was noted by check_item_ranges.
      if (shard.item.length == 0 || shard.item.offset + shard.item.length > catalog_.files[shard.item.file].size)
        continue;
      if (shard.encoding == tensor::Encoding::kEncoded) {
        shard.where = shard.item;
        continue;
      }
      auto item = read(shard.item);
      if (!item && answers_no(item.error().code) && safetensors_.begins_at(shard.item)) {
        locate_in_safetensors(t, shard);
        continue;
      }
      auto same = item ? compare(*item, t, shard) : Result<void>(item.error());
      if (!same) {
        if (same.error().code == Code::kNotFound) continue;  // the file is missing, which check_item_ranges said
        if (!answers_no(same.error().code) && same.error().code != Code::kUnsupported) return same;
        note(t.key, shard.item, same.error());
        continue;
      }
      for (const tensor::Checksum& sum : item->wrong) note(t.key, shard.item, Error(Code::kCorrupt, "", sum.differs()));
      if (!item->layout) {
        shard.where = {shard.item.file, shard.item.offset + item->offset, item->length};
        keep(std::move(item->storage), shard.item);
      } else {
        shard.encoding = tensor::Encoding::kEncoded;
        shard.where = shard.item;
      }
    }
    return {};
  }

  Result<void> decode(tensor::Object& object) {
    if (object.where.length > kMaxObject)
      return fail(Code::kUnsupported, object.key, "is larger than an encoded object may be");
    CKPT_TRY_ASSIGN(auto file, files_.open(object.where.file));
    std::vector<std::byte> encoded(object.where.length);
    auto read = io::pread_exact(file->get(), encoded, object.where.offset, path(object.where));
    auto bytes = read ? decompress(encoded, kMaxObject) : Result<std::vector<std::byte>>(read.error());
    if (bytes) object.inline_bytes = std::move(*bytes);
    else note(object.key, object.where, bytes.error());
    return {};
  }

 private:
  const std::string& path(const tensor::FileRange& range) const { return catalog_.files[range.file].path; }

  void locate_in_safetensors(const tensor::Tensor& t, tensor::Shard& shard) {
    auto where = safetensors_.find(t, shard);
    if (!where) return note(t.key, shard.item, where.error());
    shard.where = *where;
    shard.item = {};  // no record of its own around it
  }

  void keep(tensor::Checksum sum, const tensor::FileRange& item) {
    sum.where.file = item.file;
    sum.where.offset += item.offset;
    if (sum.where.length > 0) checksums_.push_back(std::move(sum));
  }

  /// Small items are read at once: a zip takes five reads otherwise.
  Result<TensorItem> read(const tensor::FileRange& range) {
    constexpr uint64_t kSmall = 32 << 10;
    CKPT_TRY_ASSIGN(auto file, files_.open(range.file));
    if (range.length > kSmall)
      return read_tensor_item(zip::ByteSource(file->get(), range.offset, range.length, path(range)));
    buffer_.resize(range.length);
    CKPT_TRY(io::pread_exact(file->get(), buffer_, range.offset, path(range)));
    return read_tensor_item(zip::ByteSource(buffer_, path(range)));
  }

  void note(const std::string& key, const tensor::FileRange& range, const Error& error) {
    std::lock_guard lock(mutex_);
    damage_.add(key, path(range), range.offset, error);
  }

  tensor::FileCache& files_;
  SafetensorsItems& safetensors_;
  tensor::Catalog& catalog_;
  DamageLog& damage_;
  std::mutex& mutex_;
  std::vector<tensor::Checksum> checksums_;
  std::vector<std::byte> buffer_;
};

}  // namespace

std::shared_ptr<const tensor::Decoder> item_decoder() { return std::make_shared<ItemDecoder>(); }

void check_item_ranges(const DcpMetadata& metadata, tensor::Catalog& catalog, DamageLog& damage) {
  std::vector<bool> there(metadata.paths.size(), true);
  for (size_t i = 0; i < metadata.paths.size(); ++i) {
    struct stat st{};
    const std::string& path = metadata.paths[i];
    if (::stat((catalog.root / path).c_str(), &st) != 0) damage.add("", path, std::nullopt, "is missing");
    else if (!S_ISREG(st.st_mode)) damage.add("", path, std::nullopt, "is not a regular file");
    else catalog.files[i].size = static_cast<uint64_t>(st.st_size);
    there[i] = S_ISREG(st.st_mode);
  }
  std::vector<Item> items;
  for (const DcpTensor& t : metadata.tensors) {
    for (const tensor::Shard& shard : t.tensor.shards) {
      if (shard.item.length != 0) items.push_back({shard.item, &t.tensor.key});
    }
  }
  for (const tensor::Object& object : metadata.objects) items.push_back({object.where, &object.key});
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::pair(a.range.file, a.range.offset) < std::pair(b.range.file, b.range.offset);
  });
  tensor::FileCache files(catalog);
  SafetensorsItems safetensors(catalog, files);
  for (size_t i = 0; i < items.size(); ++i) {
    const tensor::FileRange& range = items[i].range;
    const uint64_t size = catalog.files[range.file].size;
    if (there[range.file] && range.offset + range.length > size) {
      damage.add(*items[i].key, metadata.paths[range.file], range.offset,
                 "the item ends at byte " + std::to_string(range.offset + range.length) + " of a file of " +
                     std::to_string(size));
    }
    if (i > 0 && items[i - 1].range.file == range.file && range.length != 0 &&
        items[i - 1].range.offset + items[i - 1].range.length > range.offset &&
        !(items[i - 1].range.offset == range.offset && safetensors.begins_at(range))) {
      damage.add(*items[i].key, metadata.paths[range.file], range.offset,
                 "the item overlaps that of " + *items[i - 1].key);
    }
  }
}

Result<void> locate_items(DcpMetadata& metadata, tensor::Catalog& catalog, DamageLog& damage) {
  tensor::FileCache files(catalog);
  SafetensorsItems safetensors(catalog, files);
  std::mutex mutex;
  constexpr size_t kBatch = 256;
  WorkerPool pool;
  for (size_t begin = 0; begin < metadata.tensors.size(); begin += kBatch) {
    bool more = pool.submit([&, begin]() -> Result<void> {
      Locator locator(files, safetensors, catalog, damage, mutex);
      const size_t end = std::min(begin + kBatch, metadata.tensors.size());
      for (size_t i = begin; i < end; ++i) CKPT_TRY(locator.locate(metadata.tensors[i].tensor));
      return {};
    });
    if (!more) break;
  }
  CKPT_TRY(pool.finish());
  const std::unordered_set<std::string> encoded(metadata.encoded_objects.begin(), metadata.encoded_objects.end());
  Locator locator(files, safetensors, catalog, damage, mutex);
  for (tensor::Object& object : metadata.objects) {
    if (encoded.count(object.key) != 0) CKPT_TRY(locator.decode(object));
  }
  return {};
}

}  // namespace ckpt::formats
