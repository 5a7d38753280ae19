// The x87 stack, its control and tag words, and MXCSR stay live in a loop, each set to what is not the default.
#include "target.h"

volatile int x87_stop;
struct __attribute__((packed)) Extended {
  uint8_t byte[10];
};
struct Extended x87_wanted[6], x87_found[6];
uint16_t x87_control = 0x0C7F, x87_control_found, x87_status_found;  // round towards zero, 24 bit precision
uint32_t x87_mxcsr = 0x1FC0 | 0x6000, x87_mxcsr_found;              // DAZ, round towards zero

// Six values and two free places: the top of the stack is not where it is after `fninit`.
__asm__(
    ".text\n.globl x87_spin\n.type x87_spin,@function\nx87_spin:\n"
    "fninit\nfldcw x87_control(%rip)\nldmxcsr x87_mxcsr(%rip)\n"
    "lea x87_wanted(%rip), %rcx\n"
    "fldt 50(%rcx)\nfldt 40(%rcx)\nfldt 30(%rcx)\nfldt 20(%rcx)\nfldt 10(%rcx)\nfldt 0(%rcx)\n"
    "1: cmpl $0, x87_stop(%rip)\nje 1b\n"
    "fnstcw x87_control_found(%rip)\nfnstsw x87_status_found(%rip)\nstmxcsr x87_mxcsr_found(%rip)\n"
    "lea x87_found(%rip), %rcx\n"
    "fstpt 0(%rcx)\nfstpt 10(%rcx)\nfstpt 20(%rcx)\nfstpt 30(%rcx)\nfstpt 40(%rcx)\nfstpt 50(%rcx)\n"
    "fninit\nret\n"
    ".size x87_spin,.-x87_spin\n");
void x87_spin(void);

static void* spin(void* unused) {
  x87_spin();
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  for (int i = 0; i < 6; ++i) {
    long double value = 3.0L / (i + 7) * (i % 2 ? -1 : 1);
    memcpy(x87_wanted[i].byte, &value, 10);
  }
  pthread_t thread = start_thread(spin, NULL);
  sleep_ms(20);
  target_ready();
  target_wait(NULL);
  x87_stop = 1;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  CHECK(memcmp(x87_found, x87_wanted, sizeof x87_wanted) == 0);
  CHECK_EQUAL(x87_control_found, x87_control);
  CHECK_EQUAL((x87_status_found >> 11) & 7, 2);
  CHECK_EQUAL(x87_mxcsr_found & 0xFFC0, x87_mxcsr & 0xFFC0);
  target_pass();
}
