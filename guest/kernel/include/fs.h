/* The virtual file system and the one file system in it: everything lives in the page cache. */
#pragma once
#include "mm.h"
#include "sched.h"

#define NAME_MAX 31
#define PATH_MAX 256
#define FILE_MAX_BYTES (16UL << 20)
#define NR_OPEN 32

enum { S_IFREG = 1, S_IFDIR = 2, S_IFIFO = 3, S_IFCHR = 4 };
enum { O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_ACCMODE = 3, O_CREAT = 0x40, O_EXCL = 0x80, O_TRUNC = 0x200, O_APPEND = 0x400 };
enum { SEEK_SET = 0, SEEK_CUR = 1, SEEK_END = 2 };

struct file;
struct inode;

struct file_operations {
	ssize_t (*read)(struct file *f, void *buf, size_t n, u64 *pos);
	ssize_t (*write)(struct file *f, const void *buf, size_t n, u64 *pos);
	void (*release)(struct file *f);
};

struct inode {
	u64 ino;
	u32 mode;
	u32 nlink;
	refcount_t count;
	u64 size;
	u64 nr_pages;
	u64 mtime;
	struct mutex lock; /* contents of a directory, size and pages of a file */
	spinlock_t pages_lock;
	struct radix_root pages;
	const struct file_operations *fops;
	void *private;
	struct list_head sb_list;
};

struct dentry {
	refcount_t count;
	u32 hash;
	struct dentry *parent; /* counted */
	struct inode *inode;   /* counted */
	struct list_head hash_list;
	struct list_head children, child;
	char name[NAME_MAX + 1];
};

struct file {
	refcount_t count;
	u32 flags;
	u64 pos;
	struct dentry *dentry;
	struct inode *inode;
	const struct file_operations *fops;
	void *private;
};

struct files_struct {
	spinlock_t lock;
	u64 open_fds;
	struct file *fd[NR_OPEN];
};

struct dirent {
	u64 ino;
	u32 type;
	char name[NAME_MAX + 1];
};

struct kstat {
	u64 ino, size, blocks;
	u32 mode, nlink;
};

extern struct dentry *root_dentry;

/* fs/inode.c */
void inode_init(void);
struct inode *new_inode(u32 mode);
void igrab(struct inode *i);
void iput(struct inode *i);
u64 nr_inodes(void);
struct inode *inode_next(struct inode *prev);

/* fs/dcache.c */
void dcache_init(void);
struct dentry *d_alloc(struct dentry *parent, const char *name, size_t len);
void d_add(struct dentry *d, struct inode *i);
void d_drop(struct dentry *d);
void d_move(struct dentry *d, struct dentry *parent, const char *name, size_t len);
struct dentry *d_lookup(struct dentry *parent, const char *name, size_t len);
struct dentry *dget(struct dentry *d);
void dput(struct dentry *d);
struct dentry *dget_parent(struct dentry *d);
u32 dcache_readdir(struct dentry *dir, u64 from, struct dirent *out, u32 max);

/* fs/namei.c */
struct dentry *path_lookup(const char *path);
struct dentry *path_parent(const char *path, const char **last, size_t *len);
struct file *do_filp_open(const char *path, u32 flags);
int vfs_create(struct dentry *dir, const char *name, size_t len, u32 mode, struct dentry **out);
int do_mkdir(const char *path);
int do_unlink(const char *path, bool dir);
int do_rename(const char *from, const char *to);

/* fs/file.c */
void files_init(void);
struct file *alloc_file(struct dentry *d, struct inode *i, u32 flags);
struct file *fget(s32 fd);
void fput(struct file *f);
s32 fd_install(struct file *f);
struct file *fd_detach(s32 fd);
struct files_struct *files_alloc(void);
void exit_files(struct task *p);

/* fs/read_write.c */
ssize_t vfs_read(struct file *f, void *buf, size_t n, u64 *pos);
ssize_t vfs_write(struct file *f, const void *buf, size_t n, u64 *pos);
s64 vfs_llseek(struct file *f, s64 off, u32 whence);
int vfs_truncate(struct inode *i, u64 size);
void vfs_getattr(struct inode *i, struct kstat *st);
ssize_t vfs_readdir(struct file *f, struct dirent *out, u32 max);
size_t copy_to_user(void *to, const void *from, size_t n);
size_t copy_from_user(void *to, const void *from, size_t n);
ssize_t strncpy_from_user(char *to, const char *from, size_t n);

/* fs/filemap.c */
extern const struct file_operations ramfs_file_ops;
struct page *find_get_page(struct inode *i, u64 index);
struct page *find_or_create_page(struct inode *i, u64 index);
void truncate_inode_pages(struct inode *i, u64 first);
u32 writeback_inode(struct inode *i);
u64 nr_cache_pages(void);

/* fs/pipe.c */
int create_pipe_files(struct file *out[2]);
int do_pipe(s32 fds[2]);
extern const struct file_operations pipe_read_ops, pipe_write_ops;

/* fs/chrdev.c */
int chrdev_register(const char *path, const struct file_operations *ops);
void devfs_init(void);

/* fs/writeback.c */
void writeback_start(void);
void writeback_stop(void);
int vfs_fsync(struct file *f);

/* sys/ */
enum {
	SYS_read, SYS_write, SYS_open, SYS_close, SYS_stat, SYS_fstat, SYS_lseek, SYS_pipe, SYS_dup, SYS_getpid, SYS_sched_yield,
	SYS_nanosleep, SYS_gettimeofday, SYS_mkdir, SYS_rmdir, SYS_unlink, SYS_rename, SYS_ftruncate, SYS_getdents,
	SYS_fsync, SYS_uname, SYS_getcpu, SYS_sysinfo, SYS_times, SYS_pread, SYS_pwrite, NR_SYSCALLS,
};
s64 do_syscall(u64 nr, u64 a, u64 b, u64 c, u64 d);
