seq 1 5 >~/count.txt
