# find_package(earlybird) gives the targets earlybird::earlybird (shared) and earlybird::static.
get_filename_component(_earlybird_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET earlybird::earlybird)
  add_library(earlybird::earlybird SHARED IMPORTED)
  set_target_properties(earlybird::earlybird PROPERTIES
    IMPORTED_LOCATION "${_earlybird_prefix}/lib/libearlybird.so.@VERSION@"
    IMPORTED_SONAME "libearlybird.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_earlybird_prefix}/include")

  add_library(earlybird::static STATIC IMPORTED)
  set_target_properties(earlybird::static PROPERTIES
    IMPORTED_LOCATION "${_earlybird_prefix}/lib/libearlybird.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_earlybird_prefix}/include"
    INTERFACE_LINK_LIBRARIES "gcc_s;pthread;m;dl")
endif()

unset(_earlybird_prefix)
