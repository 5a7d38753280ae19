// Holds one thing that an image does not cover yet, named by argv[2], or all of them. It must be refused by name and
// find the process as it was. A control for the runner: "nothing" is not refused.
#include <linux/aio_abi.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <linux/keyctl.h>
#include <linux/net_tstamp.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "../uring.h"

static void hold_nothing(void) {}
static void hold_connection(void) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  CHECK_EQUAL(bind(fd, (struct sockaddr*)&address, sizeof address), 0);
  CHECK_EQUAL(listen(fd, 5), 0);
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)&address, &size), 0);
  CHECK_EQUAL(connect(client, (struct sockaddr*)&address, size), 0);
  CHECK(accept(fd, NULL, NULL) >= 0);
}
/// Where standard output can be watched: a pipe.
static void hold_watched_output(void) {
  struct epoll_event event = {.events = EPOLLOUT};
  int set = epoll_create1(0);
  CHECK(epoll_ctl(set, EPOLL_CTL_ADD, 1, &event) == 0 || errno == EPERM);
}
static void hold_fanotify_unread(void) {
  int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY);
  if (fd < 0) target_skip("fanotify: %s", strerror(errno));
  CHECK_EQUAL(mkdir("watched", 0755), 0);
  CHECK_EQUAL(fanotify_mark(fd, FAN_MARK_ADD, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, AT_FDCWD, "watched"), 0);
  CHECK_EQUAL(close(open("watched/file", O_CREAT | O_WRONLY, 0644)), 0);
}
/// Somebody else wants the file, and waits for the process to give it up.
static void hold_lease_broken(void) {
  CHECK(signal(SIGIO, SIG_IGN) != SIG_ERR);
  int fd = open("leased", O_CREAT | O_RDWR, 0600);
  if (fcntl(fd, F_SETLEASE, F_WRLCK) != 0) target_skip("no leases here: %s", strerror(errno));
  CHECK(open("leased", O_RDONLY | O_NONBLOCK) == -1);
  CHECK_EQUAL(errno, EWOULDBLOCK);
}
/// A trigger, which nothing tells: the file is open for writing.
static void hold_pressure(void) {
  static const char kTrigger[] = "some 150000 2000000";
  int fd = open("/proc/pressure/memory", O_RDWR | O_NONBLOCK);
  if (fd < 0 || write(fd, kTrigger, sizeof kTrigger) < 0)
    target_skip("no pressure stall information: %s", strerror(errno));
}
/// Who has it may not be told by an image.
static void hold_capable_file(void) {
  static const uint32_t kBindService[] = {0x02000001, 1 << 10, 0, 0, 0};
  int fd = open("capable", O_CREAT | O_RDWR, 0700);
  if (fsetxattr(fd, "security.capability", kBindService, sizeof kBindService, 0) != 0)
    target_skip("no capabilities of files here: %s", strerror(errno));
  CHECK_EQUAL(unlink("capable"), 0);
}
static void hold_notify(void) {
  CHECK(signal(SIGIO, SIG_IGN) != SIG_ERR);
  CHECK_EQUAL(mkdir("told_of", 0755), 0);
  int fd = open("told_of", O_RDONLY | O_DIRECTORY);
  if (fcntl(fd, F_NOTIFY, DN_CREATE | DN_MULTISHOT) != 0)
    target_skip("no directory notifications: %s", strerror(errno));
}
/// No obstacle: it is said of those that stay their user.
static void hold_session_key(void) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct sets[2];
  CHECK_EQUAL(syscall(SYS_capget, &header, sets), 0);
  sets[0].permitted &= ~(1u << CAP_SETUID);
  sets[0].effective &= ~(1u << CAP_SETUID);
  CHECK_EQUAL(syscall(SYS_capset, &header, sets), 0);
  if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0) < 0 ||
      syscall(SYS_add_key, "user", "ckpt-test-session-key", "secret", 6, KEY_SPEC_SESSION_KEYRING) < 0)
    target_skip("no keys: %s", strerror(errno));
}
static void hold_reuseport(void) {
  struct sock_filter first = {BPF_RET | BPF_K, 0, 0, 0};
  struct sock_fprog program = {1, &first};
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
  CHECK_EQUAL(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), 0);
  CHECK_EQUAL(bind(fd, (struct sockaddr*)&address, sizeof address), 0);
  if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) != 0)
    target_skip("SO_ATTACH_REUSEPORT_CBPF: %s", strerror(errno));
}
static void hold_zero_copy(void) {
  int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  CHECK_EQUAL(bind(fd, (struct sockaddr*)&address, sizeof address), 0);
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)&address, &size), 0);
  CHECK_EQUAL(connect(fd, (struct sockaddr*)&address, sizeof address), 0);
  if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0) target_skip("SO_ZEROCOPY: %s", strerror(errno));
  if (send(fd, map_pages(PAGE_SIZE), PAGE_SIZE, MSG_ZEROCOPY) < 0) target_skip("MSG_ZEROCOPY: %s", strerror(errno));
}
static void hold_error_queue(void) {
  int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
  struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  CHECK_EQUAL(setsockopt(fd, IPPROTO_IP, IP_RECVERR, &on, sizeof on), 0);
  CHECK_EQUAL(sendto(fd, "x", 1, 0, (struct sockaddr*)&nobody, sizeof nobody), 1);
  struct pollfd poll_for = {.fd = fd};
  CHECK_EQUAL(poll(&poll_for, 1, 10000), 1);
}
/// A connection that nobody wanted, which is not told yet.
static void hold_error(void) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  CHECK(connect(fd, (struct sockaddr*)&nobody, sizeof nobody) == -1 && errno == EINPROGRESS);
  struct pollfd poll_for = {.fd = fd};
  CHECK_EQUAL(poll(&poll_for, 1, 10000), 1);
}
static void hold_stamp_numbers(void) {
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  const int how = SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
  struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &how, sizeof how) != 0)
    target_skip("SO_TIMESTAMPING: %s", strerror(errno));
  CHECK_EQUAL(sendto(fd, "x", 1, 0, (struct sockaddr*)&nobody, sizeof nobody), 1);
}
static void hold_core_cookie(void) {
  enum { kSchedCore = 62, kCreate = 1 };
  if (prctl(kSchedCore, kCreate, 0, 0, 0) != 0) target_skip("cookies of core scheduling: %s", strerror(errno));
}
static struct uring g_ring;
/// Waits for something that does not come.
static void hold_io_uring(void) {
  if (!uring_make(&g_ring, 4, 0, false)) target_skip("io_uring: %s", strerror(errno));
  int ends[2];
  CHECK_EQUAL(pipe(ends), 0);
  struct io_uring_sqe* sqe = uring_next(&g_ring, IORING_OP_POLL_ADD, 1);
  sqe->fd = ends[0];
  sqe->poll32_events = 1;  // POLLIN
  uring_submit(&g_ring, 1, 0);
}
static void hold_io_uring_timeout(void) {
  if (!uring_make(&g_ring, 4, 0, false)) target_skip("io_uring: %s", strerror(errno));
  static struct __kernel_timespec hour = {.tv_sec = 3600};
  struct io_uring_sqe* sqe = uring_next(&g_ring, IORING_OP_TIMEOUT, 1);
  sqe->addr = (uintptr_t)&hour;
  sqe->len = 1;
  uring_submit(&g_ring, 1, 0);
}
/// A child has the ring whose polling thread is its parent's.
static void hold_io_uring_polled(void) {
  if (!uring_make(&g_ring, 4, IORING_SETUP_SQPOLL, false)) target_skip("io_uring: %s", strerror(errno));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
}
/// Its thread has the groups that the process had.
static void hold_io_uring_changed(void) {
  if (!uring_make(&g_ring, 4, IORING_SETUP_SQPOLL, false)) target_skip("io_uring: %s", strerror(errno));
  if (setegid(12345) != 0) target_skip("groups of others: %s", strerror(errno));
}
static void hold_io_uring_groups(void) {
  if (!uring_make(&g_ring, 4, 0, false)) target_skip("io_uring: %s", strerror(errno));
  struct io_uring_sqe* sqe = uring_next(&g_ring, IORING_OP_PROVIDE_BUFFERS, 1);
  sqe->fd = 2;  // as many
  sqe->addr = (uintptr_t)map_pages(8192);
  sqe->len = 4096;
  sqe->buf_group = 7;
  uring_submit(&g_ring, 1, 1);
  struct io_uring_cqe cqe;
  CHECK(uring_take(&g_ring, &cqe) && cqe.res >= 0);
}
/// No descriptor leads to the ring, nor does a mapping.
static void hold_io_uring_number(void) {
  enum { kNoMmap = 1 << 14, kNumberOnly = 1 << 15 };
  struct io_uring_params p = {.flags = kNoMmap | kNumberOnly};
  p.sq_off.resv2 = (uintptr_t)map_pages(4096);  // user_addr since 6.5
  p.cq_off.resv2 = (uintptr_t)map_pages(4096);
  if (syscall(SYS_io_uring_setup, 4, &p) < 0) target_skip("rings without a descriptor: %s", strerror(errno));
}
/// An eventfd that nobody has open.
static void hold_io_uring_eventfd(void) {
  if (!uring_make(&g_ring, 4, 0, false)) target_skip("io_uring: %s", strerror(errno));
  int event = eventfd(0, 0);
  CHECK_EQUAL(syscall(SYS_io_uring_register, g_ring.fd, IORING_REGISTER_EVENTFD, &event, 1), 0);
  CHECK_EQUAL(close(event), 0);
}
static void hold_io_uring_closed(void) {
  if (!uring_make(&g_ring, 4, 0, false)) target_skip("io_uring: %s", strerror(errno));
  CHECK_EQUAL(close(g_ring.fd), 0);
}
/// Waits for something that does not come.
static void hold_aio(void) {
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, 4, &context) != 0) target_skip("aio: %s", strerror(errno));
  int ends[2];
  CHECK_EQUAL(pipe(ends), 0);
  struct iocb request = {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = (unsigned)ends[0], .aio_buf = 1 /* POLLIN */};
  struct iocb* list = &request;
  if (syscall(SYS_io_submit, context, 1, &list) != 1) target_skip("polls of aio: %s", strerror(errno));
}
/// A child has the ring of its parent's context.
static void hold_aio_forked(void) {
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, 4, &context) != 0) target_skip("aio: %s", strerror(errno));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
}
static void hold_hugetlb(void) {
  int fd = memfd_create("huge", MFD_HUGETLB);
  if (fd < 0 || ftruncate(fd, 2 << 20) != 0) target_skip("no huge pages: %s", strerror(errno));
  const int flags = MAP_PRIVATE | MAP_NORESERVE;  // none of them is touched
  if (mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED) target_skip("no huge pages");
}
static int g_set = -1;
static void adjust_semaphore(void) {
  struct sembuf take = {.sem_num = 4, .sem_op = 1, .sem_flg = SEM_UNDO};
  if (g_set < 0 || semop(g_set, &take, 1) != 0) target_skip("no semaphores here: %s", strerror(errno));
}
static _Atomic bool g_adjusted;
static _Noreturn void* adjust_apart(void* unused) {
  (void)unused;
  CHECK_EQUAL(unshare(CLONE_SYSVSEM), 0);
  adjust_semaphore();
  g_adjusted = true;
  for (;;) pause();
}
/// A thread has a list of its own.
static void hold_sem_undo(void) {
  g_set = semget(IPC_PRIVATE, 5, IPC_CREAT | 0600);
  adjust_semaphore();
  pthread_t thread;
  CHECK_EQUAL(pthread_create(&thread, NULL, adjust_apart, NULL), 0);
  while (!g_adjusted) usleep(1000);
}
static _Noreturn int wait_forever(void* unused) {
  (void)unused;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) pause();
}
/// Two processes have one list.
static void hold_sem_undo_shared(void) {
  g_set = semget(IPC_PRIVATE, 5, IPC_CREAT | 0600);
  adjust_semaphore();
  CHECK(clone(wait_forever, (char*)map_pages(65536) + 65536, CLONE_SYSVSEM | SIGCHLD, NULL) > 0);
}
static void hold_userfaultfd(void) {
  int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
  struct uffdio_api api = {.api = UFFD_API};
  if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0) target_skip("userfaultfd: %s", strerror(errno));
  struct uffdio_register range = {.range = {(uintptr_t)map_pages(8192), 8192}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  CHECK_EQUAL(ioctl(fd, UFFDIO_REGISTER, &range), 0);
}
static _Atomic int g_thread;
static _Noreturn void* wait_as_thread(void* unused) {
  (void)unused;
  g_thread = (int)syscall(SYS_gettid);
  for (;;) pause();
}
static void hold_thread_pidfd(void) {
  pthread_t thread;
  CHECK_EQUAL(pthread_create(&thread, NULL, wait_as_thread, NULL), 0);
  while (g_thread == 0) usleep(1000);
  if (syscall(SYS_pidfd_open, g_thread, O_EXCL) < 0) target_skip("pidfd of a thread: %s", strerror(errno));
}
/// The working folder of a child is that of a process in /proc, which has ended.
static void hold_gone_process(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0)
    for (;;) pause();
  char path[64];
  snprintf(path, sizeof path, "/proc/%d", child);
  int there[2];
  char byte;
  CHECK_EQUAL(pipe(there), 0);
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (chdir(path) != 0) _exit(1);
    close(there[0]), close(there[1]);
    for (;;) pause();
  }
  close(there[1]);
  CHECK(read(there[0], &byte, 1) == 0 && close(there[0]) == 0);
  CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}
static void hold_udp_cork(void) {
  int fd = socket(AF_INET, SOCK_DGRAM, 0), six = socket(AF_INET6, SOCK_DGRAM, 0);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_in6 to_six = {.sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  CHECK_EQUAL(sendto(fd, "one", 3, MSG_MORE, (struct sockaddr*)&to, sizeof to), 3);
  CHECK_EQUAL(sendto(six, "one", 3, MSG_MORE, (struct sockaddr*)&to_six, sizeof to_six), 3);
}
static void hold_sock_packet(void) {
  if (socket(AF_PACKET, SOCK_PACKET, htons(3)) < 0) target_skip("no right to make packet sockets (errno %d)", errno);
}
static void hold_packet_ring(void) {
  struct tpacket_req ring = {.tp_block_size = 4096, .tp_block_nr = 1, .tp_frame_size = 2048, .tp_frame_nr = 2};
  int fd = socket(AF_PACKET, SOCK_RAW, 0);
  if (fd < 0) target_skip("no right to make packet sockets (errno %d)", errno);
  CHECK_EQUAL(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring), 0);
}
static void hold_unaccepted(void) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  CHECK_EQUAL(bind(fd, (struct sockaddr*)&address, sizeof address), 0);
  CHECK_EQUAL(listen(fd, 5), 0);
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)&address, &size), 0);
  CHECK_EQUAL(connect(client, (struct sockaddr*)&address, size), 0);
}
static void hold_stranger(void) { CHECK(syscall(SYS_pidfd_open, getppid(), 0) >= 0); }
static void hold_pid_namespace(void) {
  if (unshare(CLONE_NEWPID) != 0) target_skip("no pid namespaces: %s", strerror(errno));
}
static void hold_time_namespace(void) {
  if (unshare(0x80 /* CLONE_NEWTIME */) != 0) target_skip("no time namespaces: %s", strerror(errno));
}
static volatile int g_entered;
static void* enter_namespace(void* unused) {
  if (unshare(CLONE_NEWNET) != 0) target_skip("no network namespaces: %s", strerror(errno));
  g_entered = 1;
  for (;;) sleep_ms(1000);
  return unused;
}
static void hold_thread_namespace(void) {
  start_thread(enter_namespace, NULL);
  while (!g_entered) sleep_ms(1);
}

static const struct Thing {
  const char* name;
  void (*hold)(void);
} kThings[] = {
    {"nothing", hold_nothing},
    {"connection", hold_connection},
    {"io_uring", hold_io_uring},
    {"io_uring_timeout", hold_io_uring_timeout},
    {"io_uring_polled", hold_io_uring_polled},
    {"io_uring_changed", hold_io_uring_changed},
    {"io_uring_groups", hold_io_uring_groups},
    {"io_uring_number", hold_io_uring_number},
    {"io_uring_eventfd", hold_io_uring_eventfd},
    {"io_uring_closed", hold_io_uring_closed},
    {"watched_output", hold_watched_output},
    {"fanotify_unread", hold_fanotify_unread},
    {"lease_broken", hold_lease_broken},
    {"pressure", hold_pressure},
    {"notify", hold_notify},
    {"capable_file", hold_capable_file},
    {"session_key", hold_session_key},
    {"reuseport", hold_reuseport},
    {"zero_copy", hold_zero_copy},
    {"error_queue", hold_error_queue},
    {"error", hold_error},
    {"stamp_numbers", hold_stamp_numbers},
    {"core_cookie", hold_core_cookie},
    {"aio", hold_aio},
    {"aio_forked", hold_aio_forked},
    {"hugetlb", hold_hugetlb},
    {"sem_undo", hold_sem_undo},
    {"sem_undo_shared", hold_sem_undo_shared},
    {"userfaultfd", hold_userfaultfd},
    {"stranger", hold_stranger},
    {"thread_pidfd", hold_thread_pidfd},
    {"gone_process", hold_gone_process},
    {"udp_cork", hold_udp_cork},
    {"sock_packet", hold_sock_packet},
    {"packet_ring", hold_packet_ring},
    {"unaccepted", hold_unaccepted},
    {"pid_namespace", hold_pid_namespace},
    {"time_namespace", hold_time_namespace},
    {"thread_namespace", hold_thread_namespace},
};
enum { kCount = sizeof kThings / sizeof kThings[0] };

int main(int argc, char** argv) {
  target_init(argc, argv);
  const char* wanted = argc > 2 ? argv[2] : "nothing";
  bool all = strcmp(wanted, "all") == 0, found = false;
  for (int i = 0; i < kCount; ++i) {
    const char* name = kThings[i].name;
    // Not each of them is there on every machine, so the sum is of those that are always.
    bool always = strncmp(name, "io_uring", 8) != 0 && strncmp(name, "aio", 3) != 0 && strcmp(name, "hugetlb") != 0 &&
                  strcmp(name, "userfaultfd") != 0 && strncmp(name, "sem_undo", 8) != 0 &&
                  strcmp(name, "reuseport") != 0 && strcmp(name, "zero_copy") != 0 &&
                  strcmp(name, "core_cookie") != 0 && strcmp(name, "stamp_numbers") != 0 &&
                  strcmp(name, "pressure") != 0 && strcmp(name, "notify") != 0 &&
                  strcmp(name, "capable_file") != 0 && strcmp(name, "session_key") != 0 &&
                  strcmp(name, "sock_packet") != 0 && strcmp(name, "packet_ring") != 0 &&
                  strstr(name, "namespace") == NULL;
    if (strcmp(wanted, name) != 0 && !(all && always)) continue;
    kThings[i].hold();
    found = true;
  }
  if (!found) target_fail("there is no %s", wanted);
  target_ready();
  target_wait(NULL);
  if (g_set >= 0) CHECK_EQUAL(semctl(g_set, 0, IPC_RMID), 0);
  target_pass();
}
