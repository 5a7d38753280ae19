#include "formats/npy/deflate.h"

#include <zlib.h>

#include <algorithm>

#include "lib/base/digest.h"

namespace ckpt::formats {

namespace {

constexpr size_t kStep = 1 << 30;  // zlib counts in 32 bits

Unexpected damaged(const char* why) { return fail(Code::kCorrupt, "", std::string("damaged deflate data: ") + why); }

class Inflater {
 public:
  explicit Inflater(ByteSpan encoded) : encoded_(encoded) {}
  ~Inflater() {
    if (started_) inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  /// Up to out.size() bytes; fewer where the stream or what is there of it ends.
  Result<size_t> fill(MutableByteSpan out) {
    if (!started_ && inflateInit2(&stream_, -15) != Z_OK) return fail(Code::kNoRoom, "", "cannot start zlib");
    started_ = true;
    size_t done = 0;
    while (done < out.size() && !ended_) {
      const size_t in = std::min(kStep, encoded_.size() - at_), room = std::min(kStep, out.size() - done);
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(encoded_.data() + at_));
      stream_.avail_in = static_cast<uInt>(in);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      stream_.avail_out = static_cast<uInt>(room);
      const int state = inflate(&stream_, Z_NO_FLUSH);
      if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR) return damaged("it does not decode");
      at_ += in - stream_.avail_in;
      done += room - stream_.avail_out;
      ended_ = state == Z_STREAM_END;
      if (state == Z_BUF_ERROR || (stream_.avail_in == in && stream_.avail_out == room)) break;
    }
    return done;
  }
  /// Nothing follows: neither content nor bytes behind the stream.
  bool at_end() {
    std::byte beyond{};
    auto more = fill({&beyond, 1});
    return more && *more == 0 && ended_ && at_ == encoded_.size();
  }

 private:
  ByteSpan encoded_;
  z_stream stream_{};
  size_t at_ = 0;
  bool started_ = false, ended_ = false;
};

}  // namespace

Result<size_t> inflate_beginning(ByteSpan encoded, MutableByteSpan out) { return Inflater(encoded).fill(out); }

Result<uint32_t> inflate_all(ByteSpan encoded, MutableByteSpan first, MutableByteSpan rest) {
  Inflater inflater(encoded);
  uint32_t crc = 0;
  for (MutableByteSpan part : {first, rest}) {
    CKPT_TRY_ASSIGN(size_t got, inflater.fill(part));
    if (got != part.size()) return damaged("it ends too early");
    crc = crc32(crc, part);
  }
  if (!inflater.at_end()) return damaged("it holds more than the array");
  return crc;
}

}  // namespace ckpt::formats
