// Where captured chunks of device memory go, and where restored ones come from: an image, or a test's own memory.
#pragma once

#include "lib/memory/device/chunks.h"
#include "lib/store/image.h"

namespace ckpt::capture {

/// Any thread. After a failure the image never comes to be.
class DeviceSink {
 public:
  virtual ~DeviceSink() = default;
  /// Bytes of a chunk that may change again; each chunk once in an iteration.
  virtual Result<void> pre_copied(int space, device::Address chunk, ByteSpan bytes, unsigned iteration) = 0;
  virtual Result<void> pre_copied_zero(int space, device::Address chunk, unsigned iteration) = 0;
  /// The final version of a chunk, after pre-copy: these bytes, zeros, or what came last (else: what the
  /// parent has).
  virtual Result<void> last(int space, device::Address chunk, ByteSpan bytes) = 0;
  virtual Result<void> zero(int space, device::Address chunk) = 0;
  virtual Result<void> keep(int space, device::Address chunk) = 0;
};

/// Into an image, where chunks meet those of host memory, of other processes and of the parents.
class ImageSink final : public DeviceSink {
 public:
  explicit ImageSink(store::ImageWriter& writer) : writer_(writer) {}
  Result<void> pre_copied(int space, device::Address chunk, ByteSpan bytes, unsigned iteration) override;
  Result<void> pre_copied_zero(int space, device::Address chunk, unsigned iteration) override;
  Result<void> last(int space, device::Address chunk, ByteSpan bytes) override;
  Result<void> zero(int space, device::Address chunk) override;
  Result<void> keep(int space, device::Address chunk) override;

 private:
  store::ImageWriter& writer_;
};

/// Any thread.
class DeviceContent {
 public:
  virtual ~DeviceContent() = default;
  virtual Result<void> read(int space, device::Address chunk, MutableByteSpan out) = 0;
};

class ImageContent final : public DeviceContent {
 public:
  /// Its pages are loaded.
  explicit ImageContent(const store::ImageReader& reader) : reader_(reader) {}
  /// kCorrupt: the image has not all of the chunk.
  Result<void> read(int space, device::Address chunk, MutableByteSpan out) override;

 private:
  const store::ImageReader& reader_;
};

}  // namespace ckpt::capture
