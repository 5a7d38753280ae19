# What `make package` makes: a Debian package, and a tarball whose binary starts without a C library. It lies with the
# command line because it is the command that is shipped; nothing of it is built unless asked for.

# The program again, from the same archives, with the C library in it. What glibc warns of (loading libraries, look-ups of
# users) is refused or kept to files by lib/base/linkage.cpp. Not of ckpt's own two objects: a test builds this while others
# run ckpt, which must not be linked again then.
add_executable(ckpt-static EXCLUDE_FROM_ALL cli/main.cpp cli/large_new.cpp)
set_target_properties(ckpt-static PROPERTIES OUTPUT_NAME ckpt RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/static)
target_link_libraries(ckpt-static PRIVATE ckpt_cli)
target_link_options(ckpt-static PRIVATE -static-pie -Wl,--gc-sections -Wl,-z,now -Wl,--no-warnings -s)

add_custom_target(packages
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/make_packages.sh ${PROJECT_BINARY_DIR} ${PROJECT_VERSION}
          ${PROJECT_BINARY_DIR}/packages
  USES_TERMINAL VERBATIM)
add_dependencies(packages ckpt ckpt-static)
