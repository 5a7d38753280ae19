#include "lib/state/io_uring/make.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/state/run_as.h"

namespace ckpt::restore {

using state::UringLayout;
using state::UringMemory;
using store::IoUring;

namespace {

constexpr uint32_t kNoArray = 1u << 16;  // IORING_SETUP_NO_SQARRAY, 6.6
constexpr uint32_t kMostDropped = 1u << 24;

uint32_t word_at(ByteSpan content, uint32_t offset) {
  uint32_t out = 0;
  if (offset + sizeof out <= content.size()) std::memcpy(&out, content.data() + offset, sizeof out);
  return out;
}

void store_word(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

/// The program reads and writes at the offsets that the old kernel gave it.
bool is_laid_out_alike(const IoUring& image, const UringLayout& layout, ByteSpan content) {
  return image.content_size == content.size() && image.rings_size == state::queues_size(image, layout) &&
         image.content_size - image.rings_size == state::entries_size(image) &&
         word_at(content, layout.sq.ring_mask) == image.sq_entries - 1 &&
         word_at(content, layout.sq.ring_entries) == image.sq_entries &&
         word_at(content, layout.cq.ring_mask) == image.cq_entries - 1 &&
         word_at(content, layout.cq.ring_entries) == image.cq_entries;
}

/// Requests that do nothing: the kernel's counters cannot be set, only counted up.
class NoOps {
 public:
  NoOps(int fd, const IoUring& image, const UringLayout& layout, const UringMemory& memory)
      : fd_(fd), image_(image), layout_(layout), memory_(memory) {}

  /// `unread`: how many of the last completions the program has not taken. The head of the queue stops before them:
  /// the kernel sets room aside for completions to come, which theirs must not be part of.
  Result<void> run(uint32_t unread) {
    if (!image_.no_array) fill_array();
    // Requests that were dropped left no completion.
    fill_entries(IOSQE_CQE_SKIP_SUCCESS);
    for (uint32_t left = image_.submitted - image_.completed; left != 0;) {
      const uint32_t count = std::min(left, image_.sq_entries);
      CKPT_TRY(submit(count));
      left -= count;
    }
    fill_entries(0);
    const int64_t total = image_.completed, last_head = total - unread;
    for (int64_t done = 0; done < total;) {
      const int64_t head = std::min(done, last_head), room = image_.cq_entries - (done - head);
      store_word(memory_.word(layout_.cq.head), static_cast<uint32_t>(head));
      const int64_t count = std::min({total - done, room, int64_t{image_.sq_entries}});
      CKPT_TRY(submit(static_cast<uint32_t>(count)));
      done += count;
    }
    return {};
  }

  /// What no array does.
  void fill_array() {
    uint32_t* array = memory_.word(static_cast<uint32_t>(state::array_offset(image_, layout_)));
    for (uint32_t i = 0; i < image_.sq_entries; ++i) array[i] = i;
  }

 private:
  void fill_entries(uint8_t flags) {
    for (uint64_t i = 0; i < image_.sq_entries; ++i) {
      std::byte* entry = memory_.entries() + i * image_.sqe_size;
      std::memset(entry, 0, image_.sqe_size);
      auto* request = reinterpret_cast<io_uring_sqe*>(entry);
      request->opcode = IORING_OP_NOP, request->flags = flags;
    }
  }

  Result<void> submit(uint32_t count) {
    tail_ += count;
    store_word(memory_.word(layout_.sq.tail), tail_);
    while (count != 0) {
      const unsigned flags = image_.poller.empty() ? 0 : IORING_ENTER_SQ_WAKEUP;
      const long taken = ::syscall(SYS_io_uring_enter, fd_, count, 0, flags, nullptr, 0);
      if (taken < 0 && errno == EINTR) continue;
      if (taken <= 0) return sys_error(taken < 0 ? errno : EIO, kRingSubject, "its counters cannot be raised");
      count -= static_cast<uint32_t>(taken);
    }
    return image_.poller.empty() ? Result<void>() : await_poller();
  }

  /// The kernel's thread moves the head once the completions are in the queue.
  Result<void> await_poller() const {
    constexpr uint64_t kPatienceUs = 20'000'000;
    constexpr unsigned kYields = 200;
    const uint64_t begin = monotonic_us();
    for (unsigned i = 0; __atomic_load_n(memory_.word(layout_.sq.head), __ATOMIC_ACQUIRE) != tail_; ++i) {
      if (monotonic_us() - begin > kPatienceUs)
        return fail(Code::kIo, kRingSubject, "its counters cannot be raised: the kernel's thread does nothing");
      if (i < kYields) ::sched_yield();
      else ::usleep(20);
    }
    return {};
  }

  const int fd_;
  const IoUring& image_;
  const UringLayout& layout_;
  const UringMemory& memory_;
  uint32_t tail_ = 0;
};

}  // namespace

io_uring_params params_of_ring(const IoUring& image) {
  io_uring_params params{};
  params.flags = IORING_SETUP_CQSIZE | image.flags;
  if (image.sqe_size == 128) params.flags |= IORING_SETUP_SQE128;
  if (image.cqe_size == 32) params.flags |= IORING_SETUP_CQE32;
  if (image.no_array) params.flags |= kNoArray;
  if (image.disabled || !image.restrictions.empty()) params.flags |= IORING_SETUP_R_DISABLED;
  params.cq_entries = image.cq_entries;
  return params;
}

Result<void> check_ring_size(const IoUring& image, const io_uring_params& params) {
  if (params.sq_entries == image.sq_entries && params.cq_entries == image.cq_entries) return {};
  return fail(Code::kUnsupported, kRingSubject, "is made in another size by this kernel");
}

Result<void> check_io_urings(const store::TreeImage& tree) {
  if (tree.io_urings.empty()) return {};
  CKPT_TRY(state::uring_layout());
  return {};
}

namespace {

/// `made`: the image's, with an array where this kernel does not know rings without one.
Result<UniqueFd> make_empty(const IoUring& image, UringLayout& layout, IoUring& made) {
  io_uring_params params = params_of_ring(image);
  made = image;
  auto fd = state::make_ring(params, image.sq_entries);
  if (!fd && fd.error().sys_errno == EINVAL && image.no_array) {
    made.no_array = false;
    params.flags &= ~kNoArray;
    fd = state::make_ring(params, image.sq_entries);
  }
  if (!fd) return fd;
  layout = {params.sq_off, params.cq_off};
  CKPT_TRY(check_ring_size(image, params));
  return fd;
}

Result<void> register_files(int ring, const IoUring& image, const DescriptorSource& source) {
  constexpr unsigned kWithTags = 13;  // IORING_REGISTER_FILES2
  if (image.files.empty()) return {};
  std::vector<int> fds;
  for (int file : image.files) {
    fds.push_back(file < 0 ? -1 : source(file));
    if (file >= 0 && fds.back() < 0)
      return fail(Code::kUnsupported, kRingSubject,
                  fmt::format("open file {} cannot be registered: it is made later", file));
  }
  long done = 0;
  if (image.file_tags.empty()) {
    done = ::syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, fds.data(), fds.size());
  } else {
    io_uring_rsrc_register all{};
    all.nr = static_cast<uint32_t>(fds.size());
    all.data = reinterpret_cast<uint64_t>(fds.data()), all.tags = reinterpret_cast<uint64_t>(image.file_tags.data());
    done = ::syscall(SYS_io_uring_register, ring, kWithTags, &all, sizeof all);
  }
  return done == 0 ? Result<void>() : Result<void>(sys_error(kRingSubject, "its files cannot be registered"));
}

/// The kernel counts the numbers up: what was given back in between is registered for the moment.
Result<void> register_personalities(int ring, const IoUring& image) {
  uint32_t number = 0;
  for (const store::IoUringPersonality& personality : image.personalities) {
    const Credentials who{personality.uid, personality.gid, personality.groups, personality.capabilities};
    CKPT_TRY_ASSIGN(const int got, run_with_credentials(who, [&] {
      for (;;) {
        const long made = ::syscall(SYS_io_uring_register, ring, IORING_REGISTER_PERSONALITY, nullptr, 0);
        if (made < 0) return -errno;
        if (made >= static_cast<long>(personality.number)) return static_cast<int>(made);
        ::syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_PERSONALITY, nullptr, made);
      }
    }));
    if (got < 0) return sys_error(-got, kRingSubject, "its credentials cannot be registered");
    if (static_cast<uint32_t>(got) != personality.number || personality.number <= number)
      return fail(Code::kUnsupported, kRingSubject, "gets other numbers for its credentials by this kernel");
    number = personality.number;
  }
  return {};
}

/// The last thing before it is enabled.
Result<void> restrict_ring(int ring, const IoUring& image) {
  std::vector<io_uring_restriction> rules;
  auto allow = [&](unsigned opcode, unsigned what) {
    io_uring_restriction& rule = rules.emplace_back();
    rule.opcode = static_cast<uint16_t>(opcode), rule.register_op = static_cast<uint8_t>(what);
  };
  for (const store::IoUringRestrictions& r : image.restrictions) {
    for (unsigned bit = 0; bit < 64; ++bit) {
      if ((r.registrations >> bit & 1) != 0) allow(IORING_RESTRICTION_REGISTER_OP, bit);
      if ((r.requests >> bit & 1) != 0) allow(IORING_RESTRICTION_SQE_OP, bit);
    }
    allow(IORING_RESTRICTION_SQE_FLAGS_ALLOWED, r.flags_allowed);
    allow(IORING_RESTRICTION_SQE_FLAGS_REQUIRED, r.flags_required);
  }
  if (!rules.empty() &&
      ::syscall(SYS_io_uring_register, ring, IORING_REGISTER_RESTRICTIONS, rules.data(), rules.size()) != 0)
    return sys_error(kRingSubject, "cannot be restricted as it was");
  if (image.disabled || rules.empty() ||
      ::syscall(SYS_io_uring_register, ring, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) == 0)
    return {};
  return sys_error(kRingSubject, "cannot be enabled");
}

/// Once it has been used for the last time, for each completion is told.
Result<void> register_eventfd(int ring, const IoUring& image, const DescriptorSource& source) {
  if (image.eventfd < 0) return {};
  const int fd = source(image.eventfd);
  if (fd < 0)
    return fail(Code::kCorrupt, kRingSubject, fmt::format("open file {} is not there to be told", image.eventfd));
  const unsigned how = image.eventfd_async ? IORING_REGISTER_EVENTFD_ASYNC : IORING_REGISTER_EVENTFD;
  if (::syscall(SYS_io_uring_register, ring, how, &fd, 1) == 0) return {};
  return sys_error(kRingSubject, "its eventfd cannot be registered");
}

/// The flags of a ring that is polled tell whether its thread sleeps: they are the kernel's.
void put_queues(const IoUring& image, const UringLayout& layout, ByteSpan content, const UringMemory& memory) {
  const uint64_t end = layout.sq.flags + sizeof(uint32_t);
  const bool keeps_flags = !image.poller.empty() && end <= image.rings_size;
  const uint64_t first = keeps_flags ? layout.sq.flags : 0, last = keeps_flags ? end : 0;
  std::memcpy(memory.queues(), content.data(), first);
  std::memcpy(memory.queues() + last, content.data() + last, image.rings_size - last);
}

}  // namespace

Result<void> set_up_ring(int fd, const IoUring& image, const IoUring& made, const UringLayout& layout,
                         ByteSpan content, const DescriptorSource& source) {
  if (!is_laid_out_alike(image, layout, content))
    return fail(Code::kUnsupported, kRingSubject, "is laid out otherwise by this kernel");
  const uint32_t unread = image.completed - word_at(content, layout.cq.head);
  if (unread > image.cq_entries || image.submitted - image.completed > kMostDropped ||
      (image.disabled && image.submitted != 0) ||
      (!image.poller.empty() && word_at(content, layout.sq.tail) != image.submitted))
    return fail(Code::kCorrupt, kRingSubject, "the image contradicts itself: its counters do not fit its queues");
  CKPT_TRY(register_files(fd, image, source));
  CKPT_TRY(register_personalities(fd, image));
  CKPT_TRY(restrict_ring(fd, image));
  CKPT_TRY_ASSIGN(UringMemory memory, UringMemory::map(fd, made, layout));
  NoOps requests(fd, made, layout, memory);
  CKPT_TRY(requests.run(unread));
  put_queues(image, layout, content, memory);
  std::memcpy(memory.entries(), content.data() + image.rings_size, content.size() - image.rings_size);
  if (image.no_array && !made.no_array) requests.fill_array();
  return register_eventfd(fd, image, source);
}

Result<UniqueFd> make_io_uring(const IoUring& image, ByteSpan content, const DescriptorSource& source) {
  UringLayout layout;
  IoUring made;
  CKPT_TRY_ASSIGN(UniqueFd fd, make_empty(image, layout, made));
  CKPT_TRY(set_up_ring(fd.get(), image, made, layout, content, source));
  return fd;
}

const store::Descriptor& descriptor_of_ring(const store::TreeImage& tree, size_t ring) {
  return *std::find_if(tree.descriptors.begin(), tree.descriptors.end(), [&](const store::Descriptor& d) {
    return d.kind == store::DescriptorKind::kIoUring && d.object == static_cast<int>(ring);
  });
}

}  // namespace ckpt::restore
