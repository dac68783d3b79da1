#!/bin/bash
# rotate.sh DIR KEEP: NAME.log becomes NAME.log.1, NAME.log.1 becomes NAME.log.2 and so on; at most KEEP old
# logs of a name stay, the oldest goes. A new, empty NAME.log is made.
dir=$1
keep=$2
for log in $(ls $dir/*.log); do
  for ((n = 1; n < keep; n++)); do
    if [ -e $log.$n ]; then
      mv $log.$n $log.$((n + 1))
    fi
  done
  mv $log $log.1
  touch $log
done
