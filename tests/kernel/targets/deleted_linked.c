// A file whose name of opening is gone, but which has another name: it is still that file.
#include <sys/stat.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  int fd = open("first name", O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && write(fd, "content", 7) == 7);
  CHECK(link("first name", "other name") == 0 && unlink("first name") == 0);
  target_ready();
  target_wait(NULL);
  struct stat open_file, named;
  CHECK(fstat(fd, &open_file) == 0 && stat("other name", &named) == 0);
  CHECK_EQUAL(open_file.st_ino, named.st_ino);
  CHECK_EQUAL(open_file.st_nlink, 1);
  CHECK_EQUAL(lseek(fd, 0, SEEK_CUR), 7);
  CHECK_EQUAL(pwrite(fd, "CON", 3, 0), 3);
  char text[16] = "";
  int again = open("other name", O_RDONLY);
  CHECK_EQUAL(read(again, text, sizeof text), 7);
  CHECK(strcmp(text, "CONtent") == 0);
  CHECK_EQUAL(access("first name", F_OK), -1);
  target_pass();
}
