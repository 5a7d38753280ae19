#include "lib/proc/kernel_memory.h"

#include <linux/bpf.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <span>

#include "lib/base/io.h"

namespace ckpt::proc {

namespace {

constexpr const char* kKernelMemory = "the kernel's memory";

/// The kernel gives up the check of a program as soon as a signal waits.
long bpf(bpf_cmd command, bpf_attr& attributes) {
  constexpr int kAttempts = 100;
  constexpr useconds_t kPauseUs = 500;
  long out = -1;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    out = ::syscall(SYS_bpf, command, &attributes, sizeof attributes);
    if (out >= 0 || (errno != EAGAIN && errno != EINTR)) break;
    ::usleep(kPauseUs);
  }
  return out;
}

Error bpf_refused(int error, const char* what) {
  Error out = sys_error(error, kKernelMemory, what);
  if (error != EPERM) out.code = Code::kUnsupported;
  else out.hint = "it needs CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN, and a kernel that is not locked down";
  return out;
}

constexpr bpf_insn bpf_instruction(int code, int to, int from, int offset, int immediate) {
  return {static_cast<__u8>(code), static_cast<__u8>(to & 15), static_cast<__u8>(from & 15),
          static_cast<__s16>(offset), immediate};
}
constexpr bpf_insn bpf_load(int to, int from, int offset) {
  return bpf_instruction(BPF_LDX | BPF_MEM | BPF_DW, to, from, offset, 0);
}
constexpr bpf_insn bpf_store(int to, int offset, int from) {
  return bpf_instruction(BPF_STX | BPF_MEM | BPF_DW, to, from, offset, 0);
}
constexpr bpf_insn bpf_copy(int to, int from) { return bpf_instruction(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
constexpr bpf_insn bpf_set(int to, int value) { return bpf_instruction(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value); }
constexpr bpf_insn bpf_add(int to, int value) { return bpf_instruction(BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, value); }
constexpr bpf_insn bpf_call(int helper) { return bpf_instruction(BPF_JMP | BPF_CALL, 0, 0, 0, helper); }
constexpr bpf_insn bpf_leave() { return bpf_instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0); }

Result<UniqueFd> load_instructions(std::span<const bpf_insn> code) {
  bpf_attr attributes{};
  attributes.prog_type = BPF_PROG_TYPE_SYSCALL;  // 5.14
  attributes.prog_flags = BPF_F_SLEEPABLE;
  attributes.insns = reinterpret_cast<uint64_t>(code.data());
  attributes.insn_cnt = static_cast<uint32_t>(code.size());
  attributes.license = reinterpret_cast<uint64_t>("GPL");  // of these instructions: the helpers ask for it
  UniqueFd fd(static_cast<int>(bpf(BPF_PROG_LOAD, attributes)));
  if (!fd) return bpf_refused(errno, "cannot be read");
  return fd;
}

template <class Context>
Result<void> run_bpf(int program, Context& context) {
  bpf_attr attributes{};
  attributes.test.prog_fd = static_cast<uint32_t>(program);
  attributes.test.ctx_in = reinterpret_cast<uint64_t>(&context);
  attributes.test.ctx_size_in = sizeof context;
  if (bpf(BPF_PROG_TEST_RUN, attributes) != 0) return bpf_refused(errno, "cannot be read");
  return {};
}

/// What the program is given and gives back. Address 0: the thread that runs it.
struct Question {
  uint64_t address = 0;
  int64_t error = 0;
  uint64_t word = 0;
};

struct ProcessorQuestion {
  uint64_t processor = 0;
  uint64_t address = 0;  ///< 0: there is no such processor
};

/// "0-3,8-11\n"
std::vector<unsigned> parse_processors(std::string_view text) {
  constexpr unsigned kMost = 1 << 16;
  std::vector<unsigned> out;
  for (const char *at = text.data(), *const end = at + text.size(); at < end;) {
    unsigned first = 0, last = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) break;
    last = first;
    if (parsed.ptr < end && *parsed.ptr == '-') parsed = std::from_chars(parsed.ptr + 1, end, last);
    if (parsed.ec != std::errc() || last >= kMost) break;
    for (; first <= last; ++first) out.push_back(first);
    at = parsed.ptr + 1;
  }
  return out;
}

/// Of which each processor has its own.
Result<UniqueFd> make_processor_map() {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_PERCPU_ARRAY;
  attributes.key_size = sizeof(uint32_t), attributes.value_size = sizeof(uint64_t), attributes.max_entries = 1;
  UniqueFd fd(static_cast<int>(bpf(BPF_MAP_CREATE, attributes)));
  if (!fd) return bpf_refused(errno, "cannot be read");
  return fd;
}

/// Where a processor's own one lies.
Result<UniqueFd> load_processor_program(int map) {
  constexpr int kKey = -8, kLookup = 195;  // bpf_map_lookup_percpu_elem, 5.19
  const bpf_insn code[] = {
      bpf_copy(6, 1),
      bpf_instruction(BPF_ST | BPF_MEM | BPF_DW, 10, 0, kKey, 0),
      bpf_instruction(BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, map),
      bpf_instruction(0, 0, 0, 0, 0),
      bpf_copy(2, 10),
      bpf_add(2, kKey),
      bpf_instruction(BPF_LDX | BPF_MEM | BPF_W, 3, 6, 0, 0),
      bpf_call(kLookup),
      bpf_store(6, offsetof(ProcessorQuestion, address), 0),
      bpf_set(0, 0),
      bpf_leave(),
  };
  return load_instructions(code);
}

}  // namespace

Result<const KernelMemory*> KernelMemory::get() {
  static const Result<KernelMemory> memory = make();
  if (!memory) return Error(memory.error());
  return &*memory;
}

Result<KernelMemory> KernelMemory::make() {
  CKPT_TRY_ASSIGN(KernelTypes types, KernelTypes::load());
  KernelMemory out(std::move(types));
  CKPT_TRY(out.load_program());
  CKPT_TRY(out.find_processors());
  return out;
}

Result<void> KernelMemory::load_program() {
  constexpr int kCurrentTask = 35, kReadKernel = 113, kWord = -8;
  const bpf_insn code[] = {
      bpf_copy(6, 1),
      bpf_load(3, 6, offsetof(Question, address)),
      bpf_instruction(BPF_JMP | BPF_JNE | BPF_K, 3, 0, 3, 0),
      bpf_call(kCurrentTask),
      bpf_copy(3, 0),
      bpf_store(6, offsetof(Question, address), 3),
      bpf_copy(1, 10),
      bpf_add(1, kWord),
      bpf_set(2, sizeof(uint64_t)),
      bpf_call(kReadKernel),
      bpf_store(6, offsetof(Question, error), 0),
      bpf_load(1, 10, kWord),
      bpf_store(6, offsetof(Question, word), 1),
      bpf_set(0, 0),
      bpf_leave(),
  };
  CKPT_TRY_ASSIGN(program_, load_instructions(code));
  return {};
}

Result<uint64_t> KernelMemory::word_at(uint64_t address) const {
  constexpr uint64_t kKernel = uint64_t{1} << 63;
  Question question{address};
  if (address < kKernel) question.error = -EFAULT;
  else CKPT_TRY(run_bpf(program_.get(), question));
  if (question.error != 0) return fail(Code::kUnsupported, kKernelMemory, "is not where this ckpt expects it");
  return question.word;
}

Result<uint64_t> KernelMemory::current() const {
  Question question;
  CKPT_TRY(run_bpf(program_.get(), question));
  return question.address;
}

Result<uint64_t> KernelMemory::offset_of(const char* structure, const char* member) const {
  const auto known = offsets_.find({structure, member});
  if (known != offsets_.end()) return known->second;
  CKPT_TRY_ASSIGN(const uint64_t offset, types_.offset_of(structure, member));
  offsets_[{structure, member}] = offset;
  return offset;
}

/// The address of the first processor's own entry of a map is known both ways: as the kernel keeps it, and as it is.
Result<void> KernelMemory::find_processors() {
  CKPT_TRY_ASSIGN(const UniqueFd map, make_processor_map());
  CKPT_TRY_ASSIGN(const UniqueFd program, load_processor_program(map.get()));
  CKPT_TRY_ASSIGN(const uint64_t file, file_of(map.get()));
  CKPT_TRY_ASSIGN(const uint64_t array, read<uint64_t>(file, "file", "private_data"));
  CKPT_TRY_ASSIGN(const uint64_t common, read<uint64_t>(array, "bpf_array", "pptrs"));
  CKPT_TRY_ASSIGN(const std::string text, io::read_file("/sys/devices/system/cpu/possible", 1 << 16));
  for (unsigned processor : parse_processors(text)) {
    ProcessorQuestion question{processor};
    CKPT_TRY(run_bpf(program.get(), question));
    if (question.address == 0)
      return fail(Code::kUnsupported, kKernelMemory, "has no place for a processor that exists");
    processors_.push_back(question.address - common);
  }
  return {};
}

Result<uint64_t> KernelMemory::file_of(int fd) const {
  CKPT_TRY_ASSIGN(const uint64_t task, current());
  CKPT_TRY_ASSIGN(const uint64_t files, read<uint64_t>(task, "task_struct", "files"));
  CKPT_TRY_ASSIGN(const uint64_t table, read<uint64_t>(files, "files_struct", "fdt"));
  CKPT_TRY_ASSIGN(const uint64_t array, read<uint64_t>(table, "fdtable", "fd"));
  return word_at(array + static_cast<uint64_t>(fd) * sizeof(uint64_t));
}

/// Whether this is a `struct pid` with that number in ckpt's own namespace.
Result<bool> KernelMemory::is_number(uint64_t pid_structure, int pid) const {
  CKPT_TRY_ASSIGN(const uint64_t task, current());
  CKPT_TRY_ASSIGN(const uint64_t own, read<uint64_t>(task, "task_struct", "thread_pid"));
  CKPT_TRY_ASSIGN(const auto level, read<uint32_t>(own, "pid", "level"));
  CKPT_TRY_ASSIGN(const uint64_t numbers, offset_of("pid", "numbers"));
  CKPT_TRY_ASSIGN(const uint64_t size, types_.size_of("upid"));
  auto deepest = read<uint32_t>(pid_structure, "pid", "level");
  if (!deepest || *deepest < level) return false;
  auto number = read<int>(pid_structure + numbers + level * size, "upid", "nr");
  return number && *number == pid;
}

Result<uint64_t> KernelMemory::task_of(int pid, int pidfd) const {
  constexpr uint64_t kGroup = 1;  // PIDTYPE_TGID
  CKPT_TRY_ASSIGN(const uint64_t file, file_of(pidfd));
  CKPT_TRY_ASSIGN(uint64_t found, read<uint64_t>(file, "file", "private_data"));
  CKPT_TRY_ASSIGN(bool is_it, is_number(found, pid));
  if (!is_it) {  // since 6.9
    CKPT_TRY_ASSIGN(const uint64_t inode, read<uint64_t>(file, "file", "f_inode"));
    CKPT_TRY_ASSIGN(found, read<uint64_t>(inode, "inode", "i_private"));
    CKPT_TRY_ASSIGN(is_it, is_number(found, pid));
  }
  if (!is_it) return fail(Code::kUnsupported, kKernelMemory, "does not tell where a process is");
  CKPT_TRY_ASSIGN(const uint64_t tasks, offset_of("pid", "tasks"));
  CKPT_TRY_ASSIGN(const uint64_t links, offset_of("task_struct", "pid_links"));
  CKPT_TRY_ASSIGN(const uint64_t first, word_at(found + tasks + kGroup * sizeof(uint64_t)));
  if (first == 0) return fail(Code::kNotFound, "process " + std::to_string(pid), "has ended");
  return first - links - kGroup * 2 * sizeof(uint64_t);
}

}  // namespace ckpt::proc
