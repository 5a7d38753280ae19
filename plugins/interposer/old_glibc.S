// The library loads on glibc 2.28 (RHEL 8) and all that is newer, wherever it was built: what later ones gave a new version is
// called by its older one. Each is a jump, so that the C library sees the true caller; the static parts of libstdc++ come
// here, too. What has no older form is in old_glibc.cpp; tests/lint/glibc.py tells what was left out.
#define OLD(name, version) \
  .symver ckpt_old_##name, name@version; \
  .globl name; .hidden name; .type name, @function; .p2align 4; \
  name: endbr64; jmp *ckpt_old_##name@GOTPCREL(%rip); .size name, .-name

  .text
  OLD(__pthread_key_create, GLIBC_2.2.5)
  OLD(dladdr, GLIBC_2.2.5)
  OLD(dladdr1, GLIBC_2.3.3)
  OLD(dlvsym, GLIBC_2.2.5)
  OLD(pthread_attr_setstacksize, GLIBC_2.2.5)
  OLD(pthread_create, GLIBC_2.2.5)
  OLD(pthread_getspecific, GLIBC_2.2.5)
  OLD(pthread_key_create, GLIBC_2.2.5)
  OLD(pthread_key_delete, GLIBC_2.2.5)
  OLD(pthread_once, GLIBC_2.2.5)
  OLD(pthread_rwlock_rdlock, GLIBC_2.2.5)
  OLD(pthread_rwlock_unlock, GLIBC_2.2.5)
  OLD(pthread_rwlock_wrlock, GLIBC_2.2.5)
  OLD(pthread_setname_np, GLIBC_2.12)
  OLD(pthread_setspecific, GLIBC_2.2.5)
  OLD(pthread_sigmask, GLIBC_2.2.5)

  .section .note.GNU-stack, "", @progbits
