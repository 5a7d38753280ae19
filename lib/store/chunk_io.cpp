#include "lib/store/chunk_io.h"

#include <fmt/format.h>

#include "lib/base/io.h"
#include "lib/base/trace.h"
#include "lib/store/image.h"

namespace ckpt::store {

Result<void> read_chunk(int fd, const PagemapRecord& record, MutableByteSpan out, std::vector<std::byte>& frame,
                        const std::string& subject) {
  CKPT_ASSERT(out.size() == page_count(record.data_mask) * kPageSize);
  auto damaged = [&] {
    return fail(Code::kCorrupt, subject,
                fmt::format("damaged at offset {}: the {} bytes of the block at {:#x} do not match their hash",
                            record.offset, record.stored_length(), record.address));
  };
  trace::Span reading("read");
  reading.bytes(record.stored_length());
  if (record.codec == Codec::kRaw) {
    CKPT_TRY(io::pread_exact(fd, out, record.offset, subject));
    reading.end();
  } else {
    frame.resize(record.stored_length());
    CKPT_TRY(io::pread_exact(fd, frame, record.offset, subject));
    reading.end();
    trace::Span decompressing("decompress");
    if (stored_check(frame) != record.stored_check || !decompress(frame, out)) return damaged();
  }
  trace::Span hashing("hash");
  if (xxh3_128(out) != record.hash) return damaged();
  return {};
}

}  // namespace ckpt::store
