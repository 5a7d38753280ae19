// The .metadata file in the portable profile of formats.md 2.5: read by torch 2.0 to current and by every Megatron
// release.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "formats/pickle/writer.h"
#include "lib/base/result.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/read.h"

namespace ckpt::torch_dist {

/// Where an item lies: the value of storage_data.
struct StorageInfo {
  std::string file;
  uint64_t offset = 0, length = 0;
};

/// Where keys lay in a nested state dict, as `begin_places` wants it: keys whose path does not lead to them are at the
/// top; none where no path does.
std::vector<std::pair<std::string_view, const tensor::KeyPath*>> nested_keys(
    std::vector<std::pair<std::string_view, const tensor::KeyPath*>> keys);

/// Writes the pickle front to back: all tensors and objects first, then all places. `sink` is given blocks of bounded
/// size, so that the metadata of a million shards never lies in memory as a whole.
class MetadataWriter {
 public:
  using Sink = std::function<Result<void>(std::string_view)>;
  explicit MetadataWriter(Sink sink);

  /// `piece(i)` is asked once for each i below `pieces`.
  Result<void> tensor(const std::string& key, tensor::DType dtype, const tensor::Shape& shape, size_t pieces,
                      const std::function<tensor::Region(size_t)>& piece);
  Result<void> object(const std::string& key);
  /// After the last tensor and object, before the first place. `nested`: where each key lay in the nested state dict,
  /// which torch's whole-checkpoint export makes again; none: keys stay as they are.
  Result<void> begin_places(const std::vector<std::pair<std::string_view, const tensor::KeyPath*>>& nested = {});
  Result<void> tensor_place(const std::string& key, const tensor::Shape& offset, size_t index,
                            const StorageInfo& place);
  Result<void> object_place(const std::string& key, const StorageInfo& place);
  /// After the last place: tensors stored as rows (formats.md 2.7) and the shapes that they have.
  Result<void> original_shapes(const std::vector<std::pair<std::string, tensor::Shape>>& shapes);
  Result<void> finish();

 private:
  void begin_record(const char* module, const char* name);
  void size(const tensor::Shape& shape);
  void place(const StorageInfo& place);
  void begin_entry();
  Result<void> end_entry();
  void end_dict();

  Sink sink_;
  pickle::Writer out_;
  size_t batch_ = 0;  ///< entries since the last MARK of the current dict
};

}  // namespace ckpt::torch_dist
