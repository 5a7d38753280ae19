#include "formats/zarr/array_reader.h"

#include <sys/stat.h>

#include <algorithm>

#include "lib/base/io.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxZarrayBytes = 1 << 20;
/// Chunks that a grid may have beyond the files that are there: past it the metadata lies, and nothing is looked up.
constexpr uint64_t kMaxAbsent = 1 << 20;

/// Files below an array's folder; with `/` between the numbers they lie in nested folders.
uint64_t count_files(const fs::path& dir, bool nested) {
  uint64_t count = 0;
  std::error_code ec;
  if (!nested) {
    for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) ++count;
  } else {
    for (fs::recursive_directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
      if (it.depth() > 64) it.disable_recursion_pending();
      ++count;
    }
  }
  return count;
}

std::string chunk_name(const tensor::Shape& index, char separator) {
  if (index.empty()) return "0";
  std::string out;
  for (uint64_t i : index) {
    if (!out.empty()) out += separator;
    out += std::to_string(i);
  }
  return out;
}

tensor::Shard make_shard(const ZarrArray& array, const tensor::Shape& index) {
  tensor::Shard shard;
  shard.offset.resize(index.size());
  shard.shape.resize(index.size());
  for (size_t i = 0; i < index.size(); ++i) {
    shard.offset[i] = index[i] * array.chunks[i];
    shard.shape[i] = std::min(array.chunks[i], array.shape[i] - shard.offset[i]);
  }
  if (shard.shape != array.chunks) shard.stored_shape = array.chunks;
  return shard;
}

}  // namespace

Result<void> ZarrArrays::add(const std::string& folder, const std::string& key) {
  const std::string meta = folder.empty() ? ".zarray" : folder + "/.zarray";
  auto text = io::read_file(catalog_.root / meta, kMaxZarrayBytes);
  if (!text) {
    if (text.error().code != Code::kAnswerNo) return std::move(text).error();
    damage_.add(key, meta, std::nullopt, text.error());
    return {};
  }
  auto array = parse_zarray(*text, megatron_);
  if (!array && array.error().code == Code::kUnsupported) {
    catalog_.unsupported.push_back(key + ": " + array.error().message);
    return {};
  }
  if (!array) {
    damage_.add(key, meta, std::nullopt, array.error());
    return {};
  }
  if (array->void_bfloat16) catalog_.warnings.push_back(key + ": dtype V2 is taken as bfloat16: the save may not have finished");
  tensor::Tensor tensor;
  tensor.key = key;
  tensor.dtype = array->dtype;
  tensor.shape = array->shape;
  tensor.fill_value = array->fill;
  add_chunks(folder, *array, tensor);
  if (!array->raw()) decoder_->add(key, *array);
  catalog_.tensors.push_back(std::move(tensor));
  return {};
}

void ZarrArrays::add_chunks(const std::string& folder, const ZarrArray& array, tensor::Tensor& tensor) {
  const tensor::Shape grid = array.grid();
  const uint64_t chunks = tensor::element_count(grid).value_or(0);  // no more than the elements, which were counted
  if (chunks == 0) return;
  const fs::path dir = folder.empty() ? catalog_.root : catalog_.root / folder;
  const uint64_t files = count_files(dir, array.separator == '/');
  if (chunks > files + kMaxAbsent) {
    damage_.add(tensor.key, folder, std::nullopt,
                "at least " + std::to_string(chunks - files) + " of " + std::to_string(chunks) + " chunks are missing");
    return;
  }
  const std::string prefix = folder.empty() ? "" : folder + "/";
  tensor::Shape index(grid.size(), 0);
  for (uint64_t n = 0; n < chunks; ++n) {
    std::string path = prefix + chunk_name(index, array.separator);
    tensor::Shard shard = make_shard(array, index);
    struct stat st{};
    if (::lstat((catalog_.root / path).c_str(), &st) != 0) {
      if (array.fill.empty()) damage_.add(tensor.key, path, std::nullopt, "the chunk is missing");
      shard.encoding = array.fill.empty() ? tensor::Encoding::kRaw : tensor::Encoding::kFill;
      shard.stored_shape.clear();
    } else {
      const auto size = static_cast<uint64_t>(st.st_size);
      if (!S_ISREG(st.st_mode)) {
        damage_.add(tensor.key, path, std::nullopt, "the chunk is not a regular file");
      } else if (array.codec == ZarrCodec::kNone && size != array.chunk_bytes()) {
        damage_.add(tensor.key, path, std::min(size, array.chunk_bytes()),
                    "the chunk has " + std::to_string(size) + " bytes instead of " + std::to_string(array.chunk_bytes()));
      } else if (size == 0) {
        damage_.add(tensor.key, path, 0, "the chunk is empty");
      }
      shard.where = {static_cast<uint32_t>(catalog_.files.size()), 0, size};
      shard.encoding = array.raw() ? tensor::Encoding::kRaw : tensor::Encoding::kEncoded;
      catalog_.files.push_back({std::move(path), size});
    }
    tensor.shards.push_back(std::move(shard));
    for (size_t axis = grid.size(); axis-- > 0;) {
      if (++index[axis] < grid[axis]) break;
      index[axis] = 0;
    }
  }
}

void ZarrArrays::finish() {
  if (!decoder_->empty()) catalog_.decoder = decoder_;
}

}  // namespace ckpt::formats
