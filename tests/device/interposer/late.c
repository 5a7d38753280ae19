// A library whose end comes late: after that of whatever is preloaded.
void (*late_call)(void);
__attribute__((destructor)) static void end(void) {
  if (late_call) late_call();
}
