# The manual pages of `lockstep` and its commands. lockstep-run(1) is written by the program from its tables; those
# that have a help of their own are made from it.
lockstep_manual(lockstep "start, watch and inspect distributed training jobs" COMPONENT launcher
                COMMAND lockstep_program)
lockstep_manual(lockstep-run "" AS_IS COMPONENT launcher COMMAND lockstep_program man)
lockstep_manual_alias(lockstep-launch lockstep-run)
foreach(_page
    "stack=show where every rank of a running job stands"
    "sbatch=write a job script for Slurm and submit it"
    "qsub=write a job script for PBS or Torque and submit it"
    "manifest=print a Kubernetes JobSet for a job"
    "doctor=say what would go wrong with a job, and the cure"
    "top=show runs at a glance in the terminal"
    "snapshot=list, inspect, verify, convert and compare snapshots")
  string(REGEX MATCH "^([a-z]+)=(.+)$" _ "${_page}")
  lockstep_manual(lockstep-${CMAKE_MATCH_1} "${CMAKE_MATCH_2}" COMPONENT launcher
                  COMMAND lockstep_program ${CMAKE_MATCH_1})
endforeach()
if(TARGET lockstep_board_program)
  lockstep_manual(lockstep-board "show runs as a page in a browser" COMPONENT launcher
                  COMMAND lockstep_board_program)
endif()
lockstep_completions(lockstep_program)
