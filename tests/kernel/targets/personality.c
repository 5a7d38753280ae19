// Personality bits and no_new_privs.
#include <sys/personality.h>
#include <sys/prctl.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK(personality(ADDR_NO_RANDOMIZE | SHORT_INODE) >= 0);
  CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(personality(0xffffffff), ADDR_NO_RANDOMIZE | SHORT_INODE);
  CHECK_EQUAL(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
  target_pass();
}
