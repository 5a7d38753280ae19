// One rank's memory: a memfd of sealed size with a header, the layout, and one or two buffers. The agent looks at the
// header alone through a mapping; contents are read as those of a file.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/flash/layout.h"
#include "lib/flash/protocol.h"

namespace ckpt::flash {

/// What a slot says, read once.
struct SlotState {
  uint64_t sequence = 0, step = 0, objects_bytes = 0, saved_us = 0;
  bool complete() const { return sequence != 0 && sequence % 2 == 0; }
};

struct SegmentShape {
  uint32_t rank = 0, world = 0, buffers = 0;
  uint64_t layout_bytes = 0, data_bytes = 0, objects_capacity = 0;
  uint64_t buffer_offset = 0, buffer_stride = 0, segment_bytes = 0;
};

/// Thread-safe once made.
class Segment {
 public:
  /// kNoRoom: memory; kUsage: the layout is too large.
  static Result<std::shared_ptr<Segment>> create(uint32_t rank, uint32_t world, std::string layout,
                                                 uint64_t objects_capacity, uint32_t buffers);
  /// One that another agent made, from a stranger's hand. kCorrupt: its size can change, or its header is no header.
  static Result<std::shared_ptr<Segment>> adopt(UniqueFd fd);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int fd() const { return fd_.get(); }
  const SegmentShape& shape() const { return shape_; }
  const std::string& layout_text() const { return layout_text_; }
  const BufferLayout& layout() const { return layout_; }
  uint64_t buffer_offset(uint32_t buffer) const { return shape_.buffer_offset + buffer * shape_.buffer_stride; }
  uint64_t objects_offset(uint32_t buffer) const { return buffer_offset(buffer) + shape_.data_bytes; }

  /// What the trainer has made of the slot; its objects' size within the capacity.
  SlotState slot(uint32_t buffer) const;
  /// The agent itself fills a buffer (a load from storage), or gives up one that a dead trainer left half written.
  void begin(uint32_t buffer);
  void commit(uint32_t buffer, uint64_t step, uint64_t objects_bytes);
  /// Nothing is in it.
  void clear(uint32_t buffer);

  /// Pages of the buffers, so that the first save finds them: with huge pages where the kernel grants them. Ends early
  /// where `stop` says so or memory runs out, which the saves themselves will tell.
  void touch(const std::atomic<bool>& stop) const;

 private:
  Segment() = default;
  Result<void> map_header();
  SegmentHeader& header() const { return *static_cast<SegmentHeader*>(header_); }

  UniqueFd fd_;
  void* header_ = nullptr;
  SegmentShape shape_;
  std::string layout_text_;
  BufferLayout layout_;
};

/// How many buffers of `bytes` this host and the memory cgroups of this process have room for beside what runs: 2 where
/// both fit into half of what is available, else 1.
uint32_t buffers_for(uint64_t bytes);

}  // namespace ckpt::flash
