// System V shared memory, attached twice, once of them read-only and once removed; semaphores with values; messages of
// several types. All of them keep id, key, mode and content.
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "target.h"

enum { kBytes = 3 * 4096 };

struct message {
  long type;
  char text[64];
};

static void send(int queue, long type, const char* text) {
  struct message message = {.type = type};
  snprintf(message.text, sizeof message.text, "%s", text);
  CHECK_EQUAL(msgsnd(queue, &message, strlen(text), IPC_NOWAIT), 0);
}

static void receive(int queue, long type, const char* text) {
  struct message message = {.type = 0};
  ssize_t size = msgrcv(queue, &message, sizeof message.text, type, IPC_NOWAIT);
  if (size != (ssize_t)strlen(text) || memcmp(message.text, text, strlen(text)) != 0)
    target_fail("a message of %zd bytes \"%.20s\", not \"%s\"", size, message.text, text);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  key_t key = (key_t)(0x54000000 + getpid());
  int segment = shmget(key, kBytes - 100, IPC_CREAT | IPC_EXCL | 0640), gone = shmget(IPC_PRIVATE, kBytes, 0600);
  if (segment < 0 && errno == ENOSYS) target_skip("no System V IPC");
  CHECK(segment >= 0 && gone >= 0);
  uint8_t* memory = shmat(segment, NULL, 0);
  const uint8_t* again = shmat(segment, NULL, SHM_RDONLY);
  uint8_t* unnamed = shmat(gone, NULL, 0);
  CHECK(memory != (void*)-1 && again != (void*)-1 && unnamed != (void*)-1);
  CHECK_EQUAL(shmctl(gone, IPC_RMID, NULL), 0);
  fill_words(memory, kBytes - 4096, 3);
  fill_words(unnamed, kBytes, 4);
  int set = semget(key, 3, IPC_CREAT | IPC_EXCL | 0600), queue = msgget(key, IPC_CREAT | IPC_EXCL | 0622);
  CHECK(set >= 0 && queue >= 0);
  unsigned short values[3] = {5, 0, 32767}, seen[3];
  CHECK_EQUAL(semctl(set, 0, SETALL, values), 0);
  struct sembuf take_one = {.sem_num = 0, .sem_op = -1, .sem_flg = IPC_NOWAIT};
  CHECK_EQUAL(semop(set, &take_one, 1), 0);
  send(queue, 3, "three");
  send(queue, 1, "");
  send(queue, 3, "three again");
  target_ready();
  target_wait(NULL);

  struct shmid_ds state;
  CHECK_EQUAL(shmctl(segment, IPC_STAT, &state), 0);
  CHECK_EQUAL(state.shm_perm.__key, key);
  CHECK_EQUAL(state.shm_perm.mode & 0777, 0640);
  CHECK_EQUAL(state.shm_segsz, kBytes - 100);
  CHECK_EQUAL(state.shm_nattch, 2);
  CHECK_EQUAL(first_wrong(memory, kBytes - 4096, 3), -1);
  CHECK_EQUAL(first_wrong(unnamed, kBytes, 4), -1);
  memory[9000] = 77;
  CHECK_EQUAL(again[9000], 77);
  char permissions[5], flags[256];
  mapping_flags(again, permissions, flags, sizeof flags);
  CHECK_EQUAL(memcmp(permissions, "r--s", 4), 0);
  CHECK_EQUAL(shmctl(gone, IPC_STAT, &state), 0);
  CHECK_EQUAL(state.shm_perm.mode & SHM_DEST, SHM_DEST);
  CHECK_EQUAL(shmdt(unnamed), 0);
  CHECK(shmctl(gone, IPC_STAT, &state) == -1 && (errno == EINVAL || errno == EIDRM));
  CHECK_EQUAL(semctl(set, 0, GETALL, seen), 0);
  CHECK(seen[0] == 4 && seen[1] == 0 && seen[2] == 32767);
  CHECK_EQUAL(semctl(set, 0, GETPID), getpid());
  CHECK_EQUAL(semget(key, 3, 0), set);
  CHECK_EQUAL(msgget(key, 0), queue);
  receive(queue, 1, "");
  receive(queue, 0, "three");
  receive(queue, 0, "three again");
  CHECK(msgrcv(queue, &state, 1, 0, IPC_NOWAIT) == -1 && errno == ENOMSG);
  CHECK_EQUAL(shmctl(segment, IPC_RMID, NULL), 0);
  CHECK_EQUAL(semctl(set, 0, IPC_RMID), 0);
  CHECK_EQUAL(msgctl(queue, IPC_RMID, NULL), 0);
  target_pass();
}
