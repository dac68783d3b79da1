echo $((6 * 7)) >~/result.txt
