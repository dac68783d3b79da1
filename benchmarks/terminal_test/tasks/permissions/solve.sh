cd ~/site
find . -type d -exec chmod 750 {} +
find . -type f -exec chmod 640 {} +
find . -type f -name '*.sh' -exec chmod 750 {} +
find . -type f -name '*.key' -exec chmod 600 {} +
