#include "lib/proc/remote_memory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <vector>

#include "lib/base/io.h"

namespace ckpt::proc {

namespace {

std::string at_address(int pid, uint64_t address) {
  char text[48];
  std::snprintf(text, sizeof text, "process %d at 0x%llx", pid, static_cast<unsigned long long>(address));
  return text;
}

Error memory_error(int pid, uint64_t address, const char* what) {
  if (errno == ESRCH) return Error(Code::kNotFound, "process " + std::to_string(pid), "has ended");
  return sys_error(at_address(pid, address), what);
}

iovec remote_vec(uint64_t address, size_t size) { return {reinterpret_cast<void*>(address), size}; }

/// Pages that the process itself may not read (PROT_NONE, write-only) are out of process_vm_readv's reach; ptrace's
/// right over /proc/PID/mem goes further. Slower by a third, so the second choice.
Result<void> read_forced(int pid, uint64_t address, MutableByteSpan out) {
  std::string path = "/proc/" + std::to_string(pid) + "/mem";
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_RDONLY));
  return io::pread_exact(fd.get(), out, address, at_address(pid, address));
}

/// Moves all of one contiguous range; the kernel may do less at a time.
template <class Call>
Result<void> transfer(int pid, uint64_t address, std::byte* local, size_t size, Call call, const char* what) {
  while (size > 0) {
    iovec here{local, size}, there = remote_vec(address, size);
    ssize_t n = call(pid, &here, 1, &there, 1, 0);
    if (n <= 0) return memory_error(pid, address, what);
    address += static_cast<uint64_t>(n), local += n, size -= static_cast<size_t>(n);
  }
  return {};
}

}  // namespace

Result<void> read_memory(int pid, RemoteAddress from, MutableByteSpan out) {
  auto read = transfer(pid, raw(from), out.data(), out.size(), ::process_vm_readv, "cannot read its memory");
  if (!read && read.error().sys_errno == EFAULT) return read_forced(pid, raw(from), out);
  return read;
}

Result<void> read_ranges(int pid, std::span<const iovec> remote, MutableByteSpan out) {
  while (!remote.empty()) {
    std::span<const iovec> batch = remote.first(std::min<size_t>(remote.size(), IOV_MAX));
    size_t want = 0;
    for (const iovec& v : batch) want += v.iov_len;
    CKPT_ASSERT(want <= out.size());
    iovec here{out.data(), want};
    ssize_t n = ::process_vm_readv(pid, &here, 1, batch.data(), batch.size(), 0);
    if (n < 0 || static_cast<size_t>(n) != want) {
      // A part of a call: take the ranges one by one, which also says where it fails.
      size_t at = 0;
      for (const iovec& v : batch) {
        CKPT_TRY(read_memory(pid, RemoteAddress(reinterpret_cast<uint64_t>(v.iov_base)), out.subspan(at, v.iov_len)));
        at += v.iov_len;
      }
    }
    out = out.subspan(want);
    remote = remote.subspan(batch.size());
  }
  return {};
}

Result<void> write_memory(int pid, RemoteAddress to, ByteSpan data) {
  auto written = transfer(pid, raw(to), const_cast<std::byte*>(data.data()), data.size(), ::process_vm_writev,
                          "cannot write its memory");
  // It allocates, and this is also the way back out of a target: /proc/PID/mem takes one page for all.
  if (!written && written.error().code == Code::kNoRoom && poke_memory(pid, to, data)) return {};
  return written;
}

Result<void> poke_memory(int pid, RemoteAddress to, ByteSpan data) {
  std::string path = "/proc/" + std::to_string(pid) + "/mem";
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_RDWR));
  return io::pwrite_all(fd.get(), data, raw(to), path);
}

}  // namespace ckpt::proc
