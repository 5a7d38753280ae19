#include "formats/torch_dist/metadata_writer.h"

namespace ckpt::torch_dist {

namespace {

// The class paths of torch 2.0 to 2.2: later releases still load them, earlier ones know no others
// (formats.md 2.2, 2.5).
constexpr const char* kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr const char* kStorageModule = "torch.distributed.checkpoint.filesystem";
constexpr const char* kPropertiesModule = "torch.distributed._shard.sharded_tensor.metadata";
constexpr size_t kBatch = 1000;        ///< dict entries between MARK and SETITEMS: bounds a reader's stack
constexpr size_t kFlush = 256 << 10;

}  // namespace

std::vector<std::pair<std::string_view, const tensor::KeyPath*>> nested_keys(
    std::vector<std::pair<std::string_view, const tensor::KeyPath*>> keys) {
  static const tensor::KeyPath kFlat;
  bool any = false;
  for (auto& [key, path] : keys) {
    const bool leads = tensor::leads_to(*path, key);
    any = any || leads;
    if (!leads) path = &kFlat;
  }
  if (!any) keys.clear();
  return keys;
}

MetadataWriter::MetadataWriter(Sink sink) : sink_(std::move(sink)) {
  begin_record(kMetadataModule, "Metadata");
  out_.text("state_dict_metadata");
  out_.empty_dict();
}

/// Class, NEWOBJ, and the start of its attribute dict.
void MetadataWriter::begin_record(const char* module, const char* name) {
  out_.global(module, name);
  out_.empty_tuple();
  out_.new_object();
  out_.empty_dict();
  out_.mark();
}

void MetadataWriter::begin_entry() {
  if (batch_++ == 0) out_.mark();
}

Result<void> MetadataWriter::end_entry() {
  if (batch_ >= kBatch) end_dict();
  if (out_.size() < kFlush) return {};
  return sink_(out_.take());
}

void MetadataWriter::end_dict() {
  if (batch_ > 0) out_.set_items();
  batch_ = 0;
}

void MetadataWriter::size(const tensor::Shape& shape) {
  out_.global("torch", "Size");
  out_.integers(shape);
  out_.tuple1();
  out_.reduce();
}

Result<void> MetadataWriter::tensor(const std::string& key, tensor::DType dtype, const tensor::Shape& shape,
                                    size_t pieces, const std::function<tensor::Region(size_t)>& piece) {
  begin_entry();
  out_.text(key);
  begin_record(kMetadataModule, "TensorStorageMetadata");
  out_.text("properties");
  out_.global(kPropertiesModule, "TensorProperties");
  out_.empty_tuple();
  out_.new_object();
  out_.mark();
  out_.global("torch", std::string(dtype_name(dtype)));
  out_.global("torch.serialization", "_get_layout");
  out_.text("torch.strided");
  out_.tuple1();
  out_.reduce();
  out_.boolean(false);  // requires_grad
  out_.global(kPropertiesModule, "MEM_FORMAT_ENCODING");
  out_.integer(0);  // contiguous
  out_.tuple1();
  out_.reduce();
  out_.boolean(false);  // pin_memory
  out_.tuple();
  out_.build();
  out_.text("size");
  size(shape);
  out_.text("chunks");
  out_.empty_list();
  for (size_t i = 0; i < pieces; ++i) {
    if (i % kBatch == 0) out_.mark();
    tensor::Region region = piece(i);
    begin_record(kMetadataModule, "ChunkStorageMetadata");
    out_.text("offsets");
    size(region.offset);
    out_.text("sizes");
    size(region.shape);
    out_.set_items();
    out_.build();
    if (i % kBatch == kBatch - 1 || i + 1 == pieces) out_.appends();
    if (out_.size() >= kFlush) CKPT_TRY(sink_(out_.take()));
  }
  out_.set_items();
  out_.build();
  return end_entry();
}

Result<void> MetadataWriter::object(const std::string& key) {
  begin_entry();
  out_.text(key);
  out_.global(kMetadataModule, "BytesStorageMetadata");
  out_.empty_tuple();
  out_.new_object();
  return end_entry();
}

Result<void> MetadataWriter::begin_places(
    const std::vector<std::pair<std::string_view, const tensor::KeyPath*>>& nested) {
  end_dict();
  out_.text("planner_data");
  if (nested.empty()) out_.none();
  else out_.empty_dict();
  for (const auto& [key, path] : nested) {
    begin_entry();
    out_.text(key);
    out_.mark();
    for (const tensor::PathStep& step : *path) {
      // A number makes a list of what it leads through; a dict's keys torch writes as text, numbers too.
      if (step.kind == tensor::PathStep::Kind::kIndex) out_.signed_integer(step.number);
      else out_.text(step.text());
    }
    if (path->empty()) out_.text(key);
    out_.tuple();
    CKPT_TRY(end_entry());
  }
  end_dict();
  out_.text("storage_data");
  out_.empty_dict();
  return {};
}

void MetadataWriter::place(const StorageInfo& place) {
  begin_record(kStorageModule, "_StorageInfo");
  out_.text("relative_path");
  out_.text(place.file);
  out_.text("offset");
  out_.integer(place.offset);
  out_.text("length");
  out_.integer(place.length);
  out_.set_items();
  out_.build();
}

Result<void> MetadataWriter::tensor_place(const std::string& key, const tensor::Shape& offset, size_t index,
                                          const StorageInfo& at) {
  begin_entry();
  begin_record(kMetadataModule, "MetadataIndex");
  out_.text("fqn");
  out_.text(key);
  out_.text("index");
  out_.integer(index);
  out_.text("offset");
  size(offset);
  out_.set_items();
  out_.build();
  place(at);
  return end_entry();
}

Result<void> MetadataWriter::object_place(const std::string& key, const StorageInfo& at) {
  begin_entry();
  begin_record(kMetadataModule, "MetadataIndex");  // no `offset` attribute: that is how an object differs
  out_.text("fqn");
  out_.text(key);
  out_.text("index");
  out_.none();
  out_.set_items();
  out_.build();
  place(at);
  return end_entry();
}

Result<void> MetadataWriter::original_shapes(const std::vector<std::pair<std::string, tensor::Shape>>& shapes) {
  end_dict();
  out_.text("mcore_data");
  out_.empty_dict();
  for (const auto& [key, shape] : shapes) {
    begin_entry();
    out_.text(key);
    out_.empty_dict();
    out_.mark();
    out_.text("nd_reformulated_orig_global_shape");
    out_.integers(shape);
    out_.set_items();
    CKPT_TRY(end_entry());
  }
  return {};
}

Result<void> MetadataWriter::finish() {
  end_dict();
  out_.set_items();
  out_.build();
  out_.stop();
  return sink_(out_.take());
}

}  // namespace ckpt::torch_dist
