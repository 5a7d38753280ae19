// The current folder and the umask.
#include <sys/stat.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  char before[4096], after[4096];
  CHECK(getcwd(before, sizeof before) != NULL);
  umask(0137);
  target_ready();
  target_wait(NULL);
  CHECK(getcwd(after, sizeof after) != NULL && strcmp(before, after) == 0);
  CHECK_EQUAL(umask(0), 0137);
  rmdir("made");  // of a run that was restored before
  CHECK_EQUAL(mkdir("made", 0750), 0);
  struct stat about;
  CHECK(stat("made", &about) == 0 && (about.st_mode & 0777) == 0750);
  CHECK_EQUAL(rmdir("made"), 0);  // the same image may be restored once more
  target_pass();
}
