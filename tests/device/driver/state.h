// The stand-in for the CUDA driver: its state. Device memory is memfds, mapped at a "shadow" a fixed distance from the
// device addresses, which themselves are reserved and fault when host code touches them. Streams are threads.
//
// The restore thread works while every other thread of the process may be ptrace-stopped. It runs only while the API
// is locked and nothing is submitted, so that nobody changes what it reads; it takes no lock of theirs and does not
// allocate.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "plugins/cuda/driver_api.h"
#include "tests/device/driver/standin.h"

#define CKPT_STANDIN_API extern "C" __attribute__((visibility("default")))

namespace ckpt::cuda::api {
#define CKPT_CUDA(name, parameters) CKPT_STANDIN_API CUresult name parameters;
#include "plugins/cuda/driver_functions.inc"
}  // namespace ckpt::cuda::api

namespace ckpt::standin {

using namespace ckpt::cuda::api;

inline constexpr size_t kGranule = size_t{2} << 20;   ///< of physical memory
inline constexpr size_t kSmall = size_t{1} << 20;     ///< allocations below it share a granule
inline constexpr size_t kSmallAlignment = 512;
inline constexpr int kMaxGpus = 8;

// --- Settings (settings.cpp): read from the environment once, by cuInit

struct Settings {
  int gpus = 1;
  uint64_t capacity[kMaxGpus] = {};
  int version = kCudaVersion;
  uint64_t seed = 0;        ///< 0: streams do not dawdle
  unsigned delay_us = 200;  ///< at most, before each piece of work
  std::string folder;       ///< shared by the processes that share GPUs; empty: each has them alone
  unsigned lock_ms = 0;     ///< how long a lock takes that waits for nothing (CKPT_STANDIN_LOCK_MS)
  bool nvml = true;         ///< the management library tells what processes use (CKPT_STANDIN_NVML=0: it is not there)
  // What drivers do as far as is known of one or the other, each by its name in CKPT_STANDIN_UNKIND
  // (nodes,stranger,..).
  bool nodes = false;        ///< the files /dev/nvidia* that are there are open and mapped, and a fork inherits them
  bool stranger = false;     ///< of a process without a context the state is an error that says nothing (304)
  bool reexport = false;     ///< memory that was imported, or restored by the driver, is not exported
  bool out_of_step = false;  ///< where a caller was killed, the next one gets the answer to its call, and so on
};
Settings& settings();
CUuuid uuid_of(int gpu);
/// What CKPT_STANDIN_FAULT wants of this call now; "die" does not return. -1: the state FAILED.
CUresult fault(const char* call);

// --- Entering a call (api_lock.cpp)

/// Held by every call but the checkpoint calls: waits while the process is locked, and counts the call's faults.
class ApiCall {
 public:
  explicit ApiCall(const char* name, bool needs_init = true);
  ~ApiCall();
  ApiCall(const ApiCall&) = delete;
  ApiCall& operator=(const ApiCall&) = delete;
  CUresult refused() const { return refused_; }

 private:
  CUresult refused_ = CUDA_SUCCESS;
};
#define CKPT_STANDIN_ENTER()            \
  ::ckpt::standin::ApiCall call_(__func__); \
  if (call_.refused() != CUDA_SUCCESS) return call_.refused()

void gate_close();
void gate_open();
bool gate_quiet();  ///< nobody is inside a call
void* exported(const char* name);  ///< what a driver exports by this name (absent.cpp), or null
extern std::atomic<uint64_t> pending_work;

extern std::atomic<bool> initialised;
/// Of everything below but the queues of streams.
std::recursive_mutex& lock();

// --- Memory (memory.cpp, arena.cpp, ledger.cpp)

struct Context;
struct Pool;

/// A piece of a GPU's memory: what cuMemCreate makes and plain allocations have beneath them.
struct Physical {
  int device = 0;  ///< as the process numbers them
  size_t size = 0;
  int fd = -1;          ///< its own memfd where it can be exported, else the GPU's
  uint64_t offset = 0;  ///< in it
  bool own_fd = false, imported = false, restored = false;
  uint64_t inode = 0;  ///< of a memfd of its own
  CUmemAllocationProp prop{};
  int references = 0;  ///< handles and mappings
  char* saved = nullptr;  ///< its bytes while the process is checkpointed
};
struct Mapping {
  Physical* physical;
  uint64_t offset;
  size_t size;
  int protection;
};
enum class Kind { kPlain, kAsync, kManaged, kIpc, kGlobal };
struct Allocation {
  size_t size = 0;
  Kind kind = Kind::kPlain;
  Context* context = nullptr;
  Pool* pool = nullptr;
  uint64_t id = 0;
  uint64_t block = 0;  ///< the granule that it shares with others, or 0
};
struct HostRange {
  size_t size;
  unsigned flags;
  bool registered;
  Context* context;
};
struct Block {
  int device;
  std::map<uint64_t, size_t> free;
};
struct Memory {
  std::list<Physical> physical;
  std::map<uint64_t, Mapping> maps;             ///< by device address
  std::map<uint64_t, size_t> reservations;      ///< of cuMemAddressReserve
  std::map<uint64_t, Allocation> allocations;   ///< by device address
  std::map<uint64_t, Block> blocks;
  std::map<uint64_t, HostRange> host;           ///< page-locked
  int pool_fd[kMaxGpus] = {-1, -1, -1, -1, -1, -1, -1, -1};
  uint64_t pool_end[kMaxGpus] = {};
  bool managed = false, ipc = false;            ///< ever: such a process cannot be checkpointed
};
Memory& memory();

/// Device addresses.
uint64_t arena_take(size_t size, size_t alignment, uint64_t wanted = 0);  ///< 0: none left
void arena_give(uint64_t address, size_t size);
bool is_device(uint64_t address);
char* shadow(uint64_t address);

int make_memfd(const char* name);
uint64_t inode_of(int fd);
Physical* physical_make(int device, size_t size, const CUmemAllocationProp* exportable, CUresult& result);
void physical_drop(Physical* physical);  ///< one reference less
bool physical_map(uint64_t address, Physical* physical, uint64_t offset, size_t size, int protection);
bool shadow_map(uint64_t address, const Mapping& mapping);
bool shadow_unmap(uint64_t address, size_t size);
CUresult allocate(Context* context, size_t size, Kind kind, Pool* pool, CUdeviceptr* out);
CUresult release(CUdeviceptr address);
/// [address, address + size) is mapped device memory with these rights (PROT_READ, PROT_WRITE), or it is host memory.
bool reachable(uint64_t address, size_t size, int rights);
const std::pair<const uint64_t, Allocation>* allocation_at(uint64_t address);
const std::pair<const uint64_t, HostRange>* host_range_at(const void* address);

/// Bytes of GPUs in use, over all the processes that share settings().folder. By physical GPU. False: there is no room.
bool ledger_take(int gpu, uint64_t bytes);
void ledger_give(int gpu, uint64_t bytes);
uint64_t ledger_used(int gpu);
/// Memory that several processes may have, known by its memfd's inode: it counts once, until the last has let go of it.
/// `taken`: the bytes were taken before, and now count as shared.
bool ledger_hold(int gpu, uint64_t bytes, uint64_t inode, bool taken = false);
void ledger_drop(uint64_t inode);
/// The processes that have memory of a GPU, and how much. How many, no more than `most`.
int ledger_processes(int gpu, int* pids, uint64_t* bytes, int most);
/// Which GPU a device of this process is: changed by a restore to another.
extern int gpu_of[kMaxGpus];

/// Settings::nodes: at first, or again at the same addresses and numbers. The second: let go of.
bool nodes_take();
void nodes_drop();

// --- Contexts (context.cpp)

struct Stream;
struct Context {
  int device = 0;
  unsigned flags = 0;
  int references = 0;
  bool primary = false;
  uint64_t id = 0;
  std::shared_ptr<Stream> standard;
  std::set<std::shared_ptr<Stream>> streams;  ///< with `standard`
  std::set<Context*> peers;
};
Context* current_context();
Context* context_of(CUcontext handle);  ///< null: no such
std::vector<Context*> contexts_on(int device);
bool device_in_use(int device);
/// What libraries keep with a context that ends (export_tables.cpp): they are told. Without the lock.
void storage_end(Context* context);

// --- Streams (streams.cpp)

/// How far a stream has come.
struct Progress {
  std::mutex mutex;
  std::condition_variable moved;
  uint64_t done = 0;
  void wait(uint64_t number);
  bool reached(uint64_t number);
};
using Point = std::pair<std::shared_ptr<Progress>, uint64_t>;
using Work = std::function<void()>;

struct Graph;
struct Node;
struct Capture {
  std::shared_ptr<Graph> graph;
  Stream* origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool broken = false;
  uint64_t id = 0;
  std::set<Stream*> joined;
};
struct Stream {
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
  struct Item {
    Work work;
    std::vector<Point> after;
    std::vector<uint64_t> touches;
  };
  std::deque<Item> queue;  ///< under progress->mutex
  std::condition_variable wanted;
  uint64_t submitted = 0;
  bool ending = false;
  std::minstd_rand dawdle;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> last;  ///< what the next captured node depends on
};
struct Event {
  unsigned flags = 0;
  std::shared_ptr<Progress> where;
  uint64_t number = 0;
  std::shared_ptr<double> when = std::make_shared<double>(0);
  std::shared_ptr<Capture> capture;
  std::vector<Node*> nodes;
};

/// The stream that a handle means to the calling thread (null for none such); 0, 1 and 2 are the standard ones.
std::shared_ptr<Stream> stream_of(CUstream handle);
Event* event_of(CUevent handle);
std::shared_ptr<Stream> stream_make(Context* context, unsigned flags, int priority);
void stream_end(const std::shared_ptr<Stream>& stream);
/// Queues work, or makes a node of it where the stream is being captured. `params` only for kernels. `touches`: device
/// addresses that it may use, as far as can be told.
CUresult submit(const std::shared_ptr<Stream>& stream, CUgraphNodeType type, Work work,
                std::vector<uint64_t> touches = {}, std::shared_ptr<CUDA_KERNEL_NODE_PARAMS> params = {});
Point submit_plain(const std::shared_ptr<Stream>& stream, Work work, std::vector<Point> after = {},
                   std::vector<uint64_t> touches = {});
/// Work that is submitted and not done touches the range.
bool in_use(uint64_t address, size_t size);
void wait_for(const std::shared_ptr<Stream>& stream);
void wait_for_all(Context* context);
bool idle(Context* context);
/// A call that a capture of this thread forbids: says so, and spoils the capture.
CUresult forbidden_in_capture();
/// Set while a call of the name with _ptsz or _ptds is under way: stream 0 is the thread's own.
extern thread_local bool per_thread_default;

// --- Modules and launches (modules.cpp), graphs (graphs.cpp)

struct Module;
struct Function {
  Module* module = nullptr;
  std::string name;
  StandinKernel body = nullptr;
  std::vector<size_t> offsets, sizes;
  size_t total = 0;
};
/// The work of a launch, its parameters copied; null: they are not to be had. `touches` (if not null) gets the device
/// addresses among them.
Work make_launch(Function* function, const CUDA_KERNEL_NODE_PARAMS& params, std::vector<uint64_t>* touches = nullptr);
Function* function_of(const void* handle);
inline constexpr char kModuleTitle[] = "CKPTEMU1\n";
/// The text of the module that an image has, also within a fat binary and its wrapper (fat_binary.cpp); null: none.
const char* module_text(const void* image);
/// Into the current context. `image` is what cuModuleLoadData takes.
CUresult module_load(CUmodule* out, const void* image);

struct Node {
  CUgraphNodeType type;
  Work work;
  std::vector<Node*> after;
  std::shared_ptr<CUDA_KERNEL_NODE_PARAMS> params;
};
struct Graph {
  std::list<Node> nodes;
  Node* add(CUgraphNodeType type, Work work, std::vector<Node*> after);
};
/// The graph of an ended capture.
CUgraph graph_adopt(std::shared_ptr<Graph> graph);

// --- Checkpoints (checkpoint_target.cpp)

/// What a caller reads in the target's memory to find its way: in the data of this library, marked by its first bytes.
struct Note {
  char magic[16];
  std::atomic<int> active;
  std::atomic<int> state;  ///< CUprocessState
  int restore_tid;
  int request_read, request_write, reply_read, reply_write;  ///< descriptors of the target
};
struct Request {
  uint64_t number;
  uint32_t operation, timeout_ms;
  uint32_t pairs;
  CUcheckpointGpuPair pair[kMaxGpus];
};
struct Reply {
  uint64_t number;
  int32_t result;
};
inline constexpr char kNoteMagic[16] = {'C', 'K', 'P', 'T', '-', 'S', 'T', 'A', 'N', 'D', 'I', 'N', '-', 'N', 'O', '1'};
enum Operation : uint32_t { kLock = 1, kCheckpoint, kRestore, kUnlock };
bool restore_thread_start();

}  // namespace ckpt::standin

extern "C" ckpt::standin::Note ckpt_standin_note;
