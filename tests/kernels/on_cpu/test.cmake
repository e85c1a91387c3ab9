# Kernels compiled for the CPU (launch.h): CUDA's headers are needed, a GPU is not. Sanitizers of memory and of
# threads do not follow threads that take turns on stacks of their own.
function(_lockstep_kernels_on_cpu target)
  # Its kernels/approximate.cuh, hopper.cuh and wgmma.cuh come before those of src, and its cub/ before CUDA's.
  target_include_directories(${target} BEFORE PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/kernels/on_cpu")
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}")
  target_include_directories(${target} SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  # Kernels look at a value's bits through references, which nvcc allows, and products take their time.
  target_compile_options(${target} PRIVATE -O1 -fno-strict-aliasing -Wno-unknown-pragmas)
endfunction()

add_library(kernel_emulator STATIC EXCLUDE_FROM_ALL
            kernels/on_cpu/barriers.cpp kernels/on_cpu/block.cpp kernels/on_cpu/copies.cpp
            kernels/on_cpu/deadlock.cpp kernels/on_cpu/fiber.cpp kernels/on_cpu/group.cpp
            kernels/on_cpu/host_words.cpp kernels/on_cpu/machine.cpp kernels/on_cpu/meeting.cpp
            kernels/on_cpu/memory_watch.cpp
            kernels/on_cpu/products.cpp kernels/on_cpu/warps.cpp)
lockstep_compile_in_batches(kernel_emulator)
set_source_files_properties(kernels/on_cpu/products.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # names of copies.cpp
target_link_libraries(kernel_emulator PRIVATE lockstep_options)
_lockstep_kernels_on_cpu(kernel_emulator)

# Hopper's, whose tests call the kernels themselves.
lockstep_test(kernels_on_cpu_test LABELS unit LIBRARIES kernel_emulator
              SOURCES kernels/tile_attention_on_cpu_test.cpp kernels/tile_products_on_cpu_test.cpp
              kernels/on_cpu/host_words_test.cpp kernels/on_cpu/layouts_test.cpp
              kernels/on_cpu/mistakes_test.cpp)
# They use the namespaces of the kernels and of the emulator, which clash.
set_target_properties(kernels_on_cpu_test PROPERTIES UNITY_BUILD OFF)
_lockstep_kernels_on_cpu(kernels_on_cpu_test)

# The others with what starts them, by the tests that run on a GPU, too. A library for a GPU has the same functions.
if(NOT LOCKSTEP_TORCH OR LOCKSTEP_CUDA)
  return()
endif()
set(_folder "${CMAKE_CURRENT_BINARY_DIR}/kernels_on_cpu")
file(MAKE_DIRECTORY "${_folder}")
set(_translated "")
foreach(kernel adamw cast column_sum cross_entropy embedding head_loss launch_check layer_norm)
  add_custom_command(
    OUTPUT "${_folder}/${kernel}.cpp"
    COMMAND "${LOCKSTEP_TEST_PYTHON}" tests/kernels/on_cpu/translate.py src/kernels/${kernel}.cu
            "${_folder}/${kernel}.cpp"
    DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/kernels/on_cpu/translate.py"
            "${PROJECT_SOURCE_DIR}/src/kernels/${kernel}.cu"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" VERBATIM)
  list(APPEND _translated "${_folder}/${kernel}.cpp")
endforeach()
add_library(translated_kernels STATIC EXCLUDE_FROM_ALL ${_translated})
target_link_libraries(translated_kernels PRIVATE lockstep_options PUBLIC kernel_emulator)
_lockstep_kernels_on_cpu(translated_kernels)
# A GPU refuses a load whose address is no multiple of its size; a CPU does not.
set(_checks -fsanitize=alignment,bounds)
target_compile_options(translated_kernels PRIVATE ${_checks} -fno-sanitize-recover=all -Wno-sign-compare)
target_link_options(translated_kernels INTERFACE ${_checks})

lockstep_test(translated_kernels_test LABELS unit PCH LIBRARIES translated_kernels lockstep::lockstep
              SOURCES kernels/adamw_test.cpp kernels/cast_test.cpp kernels/column_sum_test.cpp
              kernels/cross_entropy_test.cpp kernels/embedding_test.cpp kernels/head_loss_test.cpp
              kernels/layer_norm_test.cpp)
target_compile_definitions(translated_kernels_test PRIVATE LOCKSTEP_KERNELS_ON_CPU)
set_target_properties(translated_kernels_test PROPERTIES UNITY_BUILD_BATCH_SIZE 7)
