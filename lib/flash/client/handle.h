// What a ckpt_flash (ckpt_flash.h) is: a trainer's connection to its agent and the memory that they share.
#pragma once

#include <time.h>

#include <atomic>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/threads.h"
#include "lib/flash/channel.h"
#include "lib/flash/client/ckpt_flash.h"
#include "lib/flash/client/copy.h"
#include "lib/flash/client/snapshot.h"
#include "lib/flash/connect.h"
#include "lib/flash/layout.h"

namespace ckpt::flash {

constexpr int kAnswerMs = 60'000;

inline uint64_t now_us(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

/// The segment, mapped and shared with the agent, which is trusted: it is of the same user, or root.
struct Mapped {
  UniqueFd fd;
  Mapping memory;
  BufferLayout layout;
  std::string layout_text;
  std::thread readying;
  std::atomic<bool> stop{false};

  ~Mapped() {
    stop.store(true);
    if (readying.joinable()) readying.join();
  }
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(memory.data()); }
  std::byte* buffer(uint64_t number) const {
    return memory.data() + header().buffer_offset + number * header().buffer_stride;
  }

  /// Pages of this process, too, so that the first save does not fault at each of them.
  void make_ready();
};

/// What a load has given out.
struct Loaded {
  ckpt_flash_loaded view{};
  Mapping memory;
  BufferLayout layout;
  std::vector<StoredObject> objects;
  std::vector<std::vector<ckpt_flash_step>> paths;
  std::vector<ckpt_flash_tensor> tensors;
  std::vector<ckpt_flash_object> object_views;
  std::vector<void*> data;
  uint64_t buffer = 0;
  /// The agent keeps the buffer as it is for it: always one of the segment that saves go to. Several may share one.
  bool pins = false;
};

/// Which file it is, as long as somebody has it mapped.
struct FileIdentity {
  uint64_t device = 0, inode = 0;
  static Result<FileIdentity> of(int fd);
  bool operator==(const FileIdentity&) const = default;
};

struct Handle {
  std::string directory, socket_path, error, text;
  uint32_t rank = 0, world = 1, local_world = 1;
  bool partner_copy = false;
  unsigned threads = 1;
  UniqueFd socket;
  uint64_t next_id = 0;
  std::unique_ptr<Mapped> mapped;
  FileIdentity saved_to;  ///< the agent's segment of this rank, as far as this handle was told
  std::list<Loaded> loaded;
  std::mutex talking;  ///< a snapshot says by itself that it is complete
  std::unique_ptr<Snapshot> snapshot;
  std::atomic<bool> under_way{false};  ///< a snapshot: what another thread may ask
  Result<void> snapshot_result;
  ckpt_flash_saved snapshot_saved{};
  bool writing = false;
  bool closed = false;  ///< only what was loaded is left of it
  uint64_t buffer = 0, step = 0, began_us = 0, copied_us = 0;

  // --- the agent ---

  Result<Answer> call(Type type, Request request, const std::string& words = {}, int fd = -1, int timeout = kAnswerMs);
  Result<void> connect();
  Result<void> reconnect();

  // --- what is saved ---

  Result<void> take_segment(UniqueFd fd, const std::string& layout_text);
  Result<void> declare(const ckpt_flash_tensor* tensors, uint32_t count, uint64_t object_bytes);
  Result<int> begin(uint64_t wanted, int if_busy, uint64_t timeout_ms);
  /// What loads have given out stops depending on the agent's buffers: each page is copied that was not yet.
  Result<void> make_own();
  /// Each page is of this process alone.
  static Result<void> copy_pages(Loaded& one);
  /// The agent is told with the last one of its buffer.
  Result<void> unpin(Loaded& one);
  /// Nothing is saved any more, and nothing that was loaded depends on the agent. Whether the agent can be told.
  bool end();
  /// The agent's segment is this one from now on: where that is another one, nobody writes any more to the one before,
  /// so nothing of it has to be pinned, and a release would be of a buffer of this one.
  Result<void> saves_go_to(int fd);
  std::vector<CopyPart> parts_of(const void* const* data) const;
  Result<void> copy(const void* const* data);
  /// Into the buffer; returns their bytes.
  Result<uint64_t> put_objects(const ckpt_flash_object* objects, uint32_t count);
  /// The one moment at which the step comes into being; then the agent is told.
  Result<void> complete(uint64_t object_bytes, int persist, ckpt_flash_saved* saved);
  Result<void> commit(const ckpt_flash_object* objects, uint32_t count, int persist, ckpt_flash_saved* saved);

  // --- a save that does not copy ---

  /// After `begin`: returns once pages are protected; what cannot be is copied here and now.
  Result<void> take_snapshot(const void* const* data, const ckpt_flash_object* objects, uint32_t count, int persist,
                             ckpt_flash_saved* saved);
  /// Waits for the snapshot that is under way, if there is one.
  Result<void> finish();
  Result<void> abort();

  // --- what is loaded ---

  Result<ckpt_flash_loaded*> load(uint32_t of, uint64_t wanted, int from, const char* path);
  /// One buffer, copy-on-write, and what is in it.
  static Result<void> map_private(int fd, uint64_t buffer, Loaded& out);
  static void show(Loaded& out);

  // --- results for C ---

  int status(const Error& failed) {
    error = failed.text();
    return failed.sys_errno == EPIPE ? CKPT_FLASH_LOST : exit_code(failed.code);
  }
  /// One call of the interface, behind what an earlier one has left under way: its failure is the failure of this one.
  template <class Work>
  int run(Work work) {
    try {
      if (auto before = finish(); !before) return status(before.error());
      auto done = work();
      return done ? 0 : status(done.error());
    } catch (const std::bad_alloc&) {
      return status(Error(Code::kNoRoom, "", "out of memory"));
    }
  }
};

}  // namespace ckpt::flash

struct ckpt_flash : ckpt::flash::Handle {};
