#include "lib/model/verify/compare.h"

#include <algorithm>
#include <cstring>

#include "formats/pickle/render.h"
#include "formats/torch_save/archive.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"

namespace ckpt::model {

namespace {

constexpr uint64_t kUnit = 64 << 20;    ///< bytes of a unit at most, where a shard can be cut
constexpr uint64_t kBlock = 4 << 20;    ///< bytes of either side in memory
constexpr uint64_t kMaxObject = 256 << 20;

std::string shape_text(const tensor::Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

/// The pieces of `region`, each at most `max_bytes`, as `RowMajorBlocks` cuts a tensor of its shape.
class Pieces {
 public:
  Pieces(const tensor::Region& region, tensor::DType dtype, uint64_t max_bytes)
      : region_(region), blocks_(box(region, dtype), max_bytes) {}
  std::optional<tensor::Region> next() {
    auto out = blocks_.next();
    for (size_t i = 0; out && i < out->offset.size(); ++i) out->offset[i] += region_.offset[i];
    return out;
  }

 private:
  static tensor::Tensor box(const tensor::Region& region, tensor::DType dtype) {
    tensor::Tensor out;
    out.dtype = dtype;
    out.shape = region.shape;
    return out;
  }
  const tensor::Region& region_;
  tensor::RowMajorBlocks blocks_;
};

bool has_encoded(const tensor::Tensor& t) {
  return std::any_of(t.shards.begin(), t.shards.end(),
                     [](const auto& s) { return s.encoding == tensor::Encoding::kEncoded; });
}

Result<std::vector<std::byte>> object_bytes(const tensor::Object& object, const tensor::Catalog& catalog,
                                            tensor::FileCache& files) {
  if (!object.inline_bytes.empty()) return object.inline_bytes;
  if (object.where.length > kMaxObject) return fail(Code::kUnsupported, object.key, "is too large to be compared");
  CKPT_TRY_ASSIGN(auto file, files.open(object.where.file));
  std::vector<std::byte> out(object.where.length);
  CKPT_TRY(io::pread_exact(file->get(), out, object.where.offset, catalog.files[object.where.file].path));
  return out;
}

/// What a torch.save file means: its object as text, outside a list of one where it is wrapped in one, and its
/// storages.
Result<std::string> object_meaning(ByteSpan bytes, bool wrapped) {
  zip::ByteSource source(bytes, "");
  CKPT_TRY_ASSIGN(formats::TorchFile file, formats::read_torch_file(source));
  pickle::NodeId root = file.graph.root();
  if (wrapped && file.graph.kind(root) == pickle::Kind::kList && file.graph.items(root).size() == 1)
    root = file.graph.items(root)[0];
  pickle::RenderOptions options;
  options.max_nodes = 20'000'000;
  options.max_string = kMaxObject;
  options.indent = false;
  std::string out = pickle::to_json(file.graph, root, options);
  std::vector<std::string> storages;
  for (const auto& [key, place] : file.storages) {
    storages.push_back(key + " " + to_hex(xxh3_128(bytes.subspan(place.first, place.second))));
  }
  std::sort(storages.begin(), storages.end());
  for (const std::string& storage : storages) out += "\n" + storage;
  return out;
}

/// Goes through two lists sorted by key. `only(entry, in_left)`, `both(left, right)`.
template <class Entry, class Only, class Both>
void merge(const std::vector<Entry>& left, const std::vector<Entry>& right, Only only, Both both) {
  size_t i = 0, j = 0;
  while (i < left.size() || j < right.size()) {
    const int order = i == left.size() ? 1 : j == right.size() ? -1 : left[i].key.compare(right[j].key);
    if (order == 0) both(left[i], right[j]);
    else only(order < 0 ? left[i] : right[j], order < 0);
    if (order <= 0) ++i;
    if (order >= 0) ++j;
  }
}

}  // namespace

Comparison::Comparison(const tensor::Catalog& left, const tensor::Catalog& right, bool skip_unreadable, Note note)
    : left_(left),
      right_(right),
      skip_unreadable_(skip_unreadable),
      note_(std::move(note)),
      left_files_(left),
      right_files_(right) {}

void Comparison::differs(const std::string& key, std::string message) {
  note_({key, "", std::nullopt, std::move(message), false, true});
}

void Comparison::pair_up() {
  note_unreadable();
  pair_tensors();
  pair_objects();
}

/// Nobody can say whether they are equal, so the answer is not yes.
void Comparison::note_unreadable() {
  for (const tensor::Catalog* catalog : {&left_, &right_}) {
    for (const tensor::Unreadable& entry : catalog->unsupported) {
      if (unreadable_.insert(entry.key).second && !skip_unreadable_)
        differs(entry.key, "cannot be compared with the other checkpoint's: " + entry.why);
    }
  }
}

void Comparison::pair_tensors() {
  merge(
      left_.tensors, right_.tensors,
      [&](const tensor::Tensor& t, bool in_left) {
        if (unreadable_.count(t.key) == 0)
          differs(t.key, in_left ? "the other checkpoint lacks it" : "only the other checkpoint has it");
      },
      [&](const tensor::Tensor& a, const tensor::Tensor& b) {
        if (unreadable_.count(a.key) != 0) return;
        if (a.dtype != b.dtype) {
          differs(a.key, "is " + std::string(tensor::dtype_name(a.dtype)) + ", in the other checkpoint " +
                             std::string(tensor::dtype_name(b.dtype)));
        } else if (a.shape != b.shape) {
          differs(a.key, "has shape " + shape_text(a.shape) + ", in the other checkpoint " + shape_text(b.shape));
        } else if (tensor::check_shards(a).empty() && tensor::check_shards(b).empty()) {
          tensors_.push_back({&a, &b, 0, {}});
          split(static_cast<uint32_t>(tensors_.size() - 1));
        }  // else: the damage that keeps it from being read has its own finding
      });
}

/// Along the shards of the side that has to be decoded, or else of the left one, so that neither is read twice.
void Comparison::split(uint32_t pair) {
  const tensor::Tensor& left = *tensors_[pair].left;
  const tensor::Tensor& t = has_encoded(left) || !has_encoded(*tensors_[pair].right) ? left : *tensors_[pair].right;
  for (const tensor::Shard& shard : t.shards) {
    const tensor::Region whole{shard.offset, shard.shape};
    Pieces pieces(whole, t.dtype, shard.encoding == tensor::Encoding::kEncoded ? UINT64_MAX : kUnit);
    while (auto piece = pieces.next()) {
      const uint64_t bytes = tensor::element_count(piece->shape).value_or(0) * tensor::item_size(t.dtype);
      units_.push_back({pair, std::move(*piece), bytes});
    }
  }
}

void Comparison::pair_objects() {
  // Formats that hold tensors only have none to compare.
  if ((!left_.objects.empty() || left_.common) && (!right_.objects.empty() || right_.common)) {
    merge(
        left_.objects, right_.objects,
        [&](const tensor::Object& o, bool in_left) {
          differs(o.key,
                  in_left ? "the other checkpoint lacks the object" : "only the other checkpoint has the object");
        },
        [&](const tensor::Object& a, const tensor::Object& b) {
          objects_.push_back({&a, &b, a.wrapped_in_list, b.wrapped_in_list});
        });
  }
  if (left_.common && right_.common && left_.format != "torch_save" && right_.format != "torch_save") {
    left_common_.key = right_common_.key = "common state";
    left_common_.where = *left_.common, right_common_.where = *right_.common;
    objects_.push_back({&left_common_, &right_common_, left_.common_wrapped_in_list, right_.common_wrapped_in_list});
  }
  for (size_t i = 0; i < objects_.size(); ++i) {
    units_.push_back({static_cast<uint32_t>(tensors_.size() + i), {}, objects_[i].left->where.length});
  }
}

Result<void> Comparison::compare(const Unit& unit, const std::function<Result<void>(uint64_t)>& advance) {
  const bool is_tensor = unit.pair < tensors_.size();
  Result<void> done;
  if (is_tensor) {
    auto scratch = borrow();
    done = compare_values(tensors_[unit.pair], unit.region, *scratch, advance);
    give_back(std::move(scratch));
  } else {
    done = compare_objects(objects_[unit.pair - tensors_.size()]);
  }
  if (!done) {
    const Code code = done.error().code;
    if (!answers_no(code) && code != Code::kUnsupported && code != Code::kNotFound) return done;
    const std::string& key =
        is_tensor ? tensors_[unit.pair].left->key : objects_[unit.pair - tensors_.size()].left->key;
    note_({key, "", std::nullopt, "cannot be compared: " + done.error().text(), false});
  }
  return is_tensor ? Result<void>() : advance(unit.bytes);
}

std::unique_ptr<Comparison::Scratch> Comparison::borrow() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<Scratch>(Scratch{{left_, left_files_}, {right_, right_files_}, {}, {}});
  auto out = std::move(idle_.back());
  idle_.pop_back();
  return out;
}

void Comparison::give_back(std::unique_ptr<Scratch> scratch) {
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

Result<void> Comparison::compare_values(TensorPair& pair, const tensor::Region& region, Scratch& scratch,
                                        const std::function<Result<void>(uint64_t)>& advance) {
  Pieces pieces(region, pair.left->dtype, kBlock);
  auto& [left, right, a, b] = scratch;
  while (auto piece = pieces.next()) {
    a.resize(tensor::element_count(piece->shape).value_or(0) * tensor::item_size(pair.left->dtype));
    b.resize(a.size());
    CKPT_TRY(left.read(*pair.left, *piece, a));
    CKPT_TRY(right.read(*pair.right, *piece, b));
    if (std::memcmp(a.data(), b.data(), a.size()) != 0) count(pair, *piece, a, b);
    CKPT_TRY(advance(a.size()));
  }
  return {};
}

void Comparison::count(TensorPair& pair, const tensor::Region& region, ByteSpan a, ByteSpan b) {
  const size_t item = tensor::item_size(pair.left->dtype);
  uint64_t different = 0;
  size_t first = 0;
  for (size_t i = 0; i < a.size(); i += item) {
    if (std::memcmp(a.data() + i, b.data() + i, item) != 0 && different++ == 0) first = i / item;
  }
  tensor::Shape at(region.shape.size());
  for (size_t axis = at.size(); axis-- > 0; first /= std::max<uint64_t>(1, region.shape[axis])) {
    at[axis] = region.offset[axis] + first % region.shape[axis];
  }
  std::lock_guard lock(mutex_);
  if (pair.different == 0 || at < pair.first) pair.first = std::move(at);
  pair.different += different;
}

Result<void> Comparison::compare_objects(const ObjectPair& pair) {
  CKPT_TRY_ASSIGN(auto a, object_bytes(*pair.left, left_, left_files_));
  CKPT_TRY_ASSIGN(auto b, object_bytes(*pair.right, right_, right_files_));
  if (pair.left_wrapped == pair.right_wrapped && a == b) return {};
  // The same object may lie in another archive: with a list around it, or with other alignment.
  CKPT_TRY_ASSIGN(std::string left, object_meaning(a, pair.left_wrapped));
  CKPT_TRY_ASSIGN(std::string right, object_meaning(b, pair.right_wrapped));
  if (left != right) differs(pair.left->key, "the object differs from the other checkpoint's");
  return {};
}

void Comparison::finish() {
  for (const TensorPair& pair : tensors_) {
    if (pair.different == 0) continue;
    differs(pair.left->key, std::to_string(pair.different) + " of " +
                                std::to_string(tensor::element_count(pair.left->shape).value_or(0)) +
                                " elements differ from the other checkpoint's, the first at " + shape_text(pair.first));
  }
}

}  // namespace ckpt::model
